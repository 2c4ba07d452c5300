"""The work of runs, counted from operators and their sizes: the same on every machine, however loaded it is. So which inputs are
tried hangs on the module, the file and the arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.judge import Effort
from fx2onnx.judge.verdict import check_effort
from fx2onnx.verify.wide import is_of_matrices

EFFORTS: dict[Effort, tuple[float, float]] = {"quick": (3.5, 0.1), "normal": (5.0, 1.0), "full": (math.inf, math.inf)}
"""The most work that all runs of eager PyTorch and of the engines together may take, except for one at other sizes
where a size is dynamic: so many times a run of eager PyTorch on the example inputs, or so many seconds of a usual core,
whichever is more."""
MOST_SAMPLES = 32
"""The largest number of sets of inputs at other efforts than ``full``."""
LEAST_SHARE = 0.2
"""The least share of the work of a run on the example inputs that a run on small inputs takes, since all weights are
read, until it was counted."""
JUDGE_RUNS = 6
"""Runs of eager PyTorch that comparisons may take, if what differs is not settled at once: larger inputs than the
example inputs are tried only where there is work left for these, too."""
_LARGE_SHARE = 3.0
"""Larger inputs are those of so many times the example's numbers."""
_OUTGROWN = 8.0
"""A run that takes so many times what its inputs let expect has sizes or counts of loops that their numbers decide."""
_LEAST_EXPECTED = 1e-3
_OPENING = 5e-9
"""Seconds of opening a file in the engines and comparing its weights, for each number of a weight."""
_CALL, _ELEMENT, _PRODUCT = 3e-5, 1e-9, 5e-11
"""Seconds of a call, of a number that an operator reads or writes, and of a product that it sums, on a usual core."""


@dataclass(slots=True)
class WorkBudget:
    """The budget of all runs of a verification and what they have cost, in seconds of a usual core; a run of an engine counts for
    as much as one of eager PyTorch.
    """

    effort: Effort = "normal"
    spent: float = 0.0
    sample: float = 0.0
    """The cost of a run of eager PyTorch on the example inputs."""
    last: float = 0.0
    """The cost of a run on the inputs that were tried last."""
    small_share: float = 1.0
    """The size of the smallest inputs so far, as a share of the example's numbers."""
    small: float | None = None
    """The cost of a run on these inputs."""

    def __post_init__(self) -> None:
        """Raises UserError E001 for an effort that is none."""
        check_effort(self.effort)

    @property
    def most(self) -> float:
        forwards, least = EFFORTS[self.effort]
        return max(forwards * self.sample, least)

    def open(self, weights: int) -> None:
        """A file with so many numbers in its weights was opened."""
        self.spent += _OPENING * weights

    def spend(self, runs: int) -> None:
        """Count the work of so many more runs on the last inputs."""
        self.spent += runs * self.last

    def cost(self, runs: int, share: float) -> float:
        """The work of so many runs on inputs with such a share of the example's numbers: as much for each further
        number as between the smallest inputs so far and the example.
        """
        if self.small is None:
            return runs * max(share, LEAST_SHARE) * self.sample
        slope = max(self.sample - self.small, 0.0) / (1.0 - self.small_share)
        return runs * (self.small + slope * max(share - self.small_share, 0.0))

    def allows(self, runs: int, share: float, samples: int = 0, *, judging: bool = False) -> bool:
        """Return whether such runs may follow, and judging them where that is asked and the inputs are large, after so many sets
        of inputs.
        """
        runs += JUDGE_RUNS if judging and share > _LARGE_SHARE else 0
        is_many = samples > MOST_SAMPLES and not math.isinf(self.most)
        return self.spent + self.cost(runs, share) <= self.most and not is_many

    def most_of_run(self, engines: int, share: float) -> float:
        """The work at which a run of eager PyTorch on inputs with such a share of the example's numbers is ended: far
        more than they let expect, and more than is left for so many engines and comparisons.
        """
        expected = max(self.cost(1, share), _LEAST_EXPECTED)
        return max(_OUTGROWN * expected, self.most / (JUDGE_RUNS + engines))

    def note(self, share: float) -> None:
        """The inputs that were tried last have such a share of the example's numbers."""
        if share < self.small_share:
            self.small_share, self.small = share, self.last


Products = Callable[..., int]
"""A function of the result and the operator's arguments."""


def _by_last_axis(place: int) -> Products:
    return lambda result, *args: result.numel() * args[place].shape[-1]


def _of_convolution(result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> int:
    is_transposed = len(rest) > 4 and bool(rest[4])
    return (x if is_transposed else result).numel() * weight[:1].numel()


def _of_attention(result: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *rest: Any) -> int:
    return 2 * query.numel() * key.shape[-2]


def _of_layer(result: torch.Tensor, *args: Any) -> int:
    """The work of a layer with weights of its own: each is used at every position."""
    weights = sum(each.numel() for each in _tensors(args[1:]) if each.dim() == 2)
    return weights * max(result.numel() // max(result.size(-1), 1), 1)  # a nested tensor has no shape


def _of_packed_convolution(result: torch.Tensor, x: torch.Tensor, *rest: Any) -> int:
    return result.numel() * x.shape[1] * 9  # the weights are not seen, and windows of 3 x 3 are usual


def _of_matrix(result: torch.Tensor, matrix: torch.Tensor, *rest: Any) -> int:
    return 10 * matrix.numel() * matrix.shape[-1] if matrix.dim() > 1 else 0


_PRODUCTS: dict[str, Products] = {
    **dict.fromkeys(("mm", "bmm", "linear", "linear_relu", "linear_dynamic", "linear_relu_dynamic", "matmul", "_cdist_forward"), _by_last_axis(0)),
    **dict.fromkeys(("addmm", "baddbmm"), _by_last_axis(1)),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution"), _of_convolution),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv1d_relu", "conv2d_relu", "conv3d_relu"), _of_packed_convolution),
    **dict.fromkeys(
        ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"),
        _of_attention,
    ),
    **dict.fromkeys(
        ("mkldnn_rnn_layer", "lstm", "gru", "rnn_tanh", "rnn_relu", "quantized_lstm", "quantized_gru",
         "_transformer_encoder_layer_fwd", "_native_multi_head_attention"), _of_layer,
    ),
}  # fmt: skip


def work_of(func: Any, args: Any, result: Any) -> float:
    """Seconds that the call of an operator takes on a usual machine."""
    given, made = _tensors(args), _tensors((result,))
    if func.is_view or not made:
        return _CALL
    name = func._opname
    products = _PRODUCTS.get(name, _of_matrix if is_of_matrices(name) else None)
    try:
        count = products(made[0], *args) if products is not None else 0
    except (IndexError, AttributeError, TypeError):  # arguments by name, or of another kind
        count = 0
    return _CALL + _ELEMENT * sum(each.numel() for each in (*given, *made)) + _PRODUCT * count


def _tensors(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found
