import torch

import fx2onnx
from acme_fx import layers  # noqa: F401  (it registers the operator)


@fx2onnx.translates(torch.ops.acme.soft_clip.default)
def soft_clip(op, x, limit):
    """acme::soft_clip(Tensor x, float limit) -> Tensor"""
    return op.custom("acme", "SoftClip", [x], [op.result[0]], limit=limit)
