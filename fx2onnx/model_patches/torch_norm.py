"""A patch of batch norms whose running statistics are averages of all batches: Python divides by how many there were."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from fx2onnx.model_patches.patching import patches


@patches("torch.nn.modules.batchnorm:_BatchNorm.forward", around=True)
def batch_norm(forward: Any, self: Any, input: torch.Tensor) -> torch.Tensor:
    """As torch's, save that with ``momentum=None`` the share of a batch is computed from ``num_batches_tracked`` in the graph."""
    count = self.num_batches_tracked
    if self.momentum is not None or not (self.training and self.track_running_stats) or count is None:
        return forward(self, input)  # type: ignore[no-any-return]
    self._check_input_dim(input)
    count.add_(1)
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    result = F.batch_norm(input, mean, var, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
    share = 1.0 / count
    for running, fresh in ((self.running_mean, mean), (self.running_var, var)):
        running.mul_(1 - share).add_(fresh * share)
    return result
