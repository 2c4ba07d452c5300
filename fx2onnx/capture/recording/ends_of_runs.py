"""What operators need of sizes without saying so: asked with a plain comparison, behind which an error is raised.

torch's kernels say ``torch._check`` and ``TORCH_SYM_CHECK`` of some of their needs, which is heard at once. Of others they only compare
sizes, as they do to choose how they go through memory. So the operator is run on fakes once more, at sizes for which the answer
would be another: where it raises, eager PyTorch does, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fx2onnx.base.relations import Relation
from fx2onnx.capture.recording.tensor_tracker import dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv

_MAKES_SOME = frozenset(
    f"aten::{name}"
    for name in (
        *(f"{kind}{rank}d" for kind in ("conv", "conv_transpose", "max_pool", "avg_pool") for rank in (1, 2, 3)),
        *(f"upsample_nearest{rank}d" for rank in (1, 2, 3)),
        *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
        *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    )
)
"""Overloads whose kernels raise where their operand is empty or the result would be, though they do not all on fakes."""


def note_what_ends_runs(
    env: ShapeEnv, operator: Callable[[], object], operand: object, result: object, since: int
) -> None:
    """Make conditions of those questions, asked in ``env`` behind the first ``since``, behind which the operator raises."""
    if env.during in _MAKES_SOME and isinstance(result, torch.Tensor) and isinstance(operand, torch.Tensor):
        env.check_some((*dims_of(operand)[1:], *dims_of(result)[1:]))
    for how, what, answer in env.asked[since:]:
        if how != "guard" or not isinstance(what, Relation) or len(what.symbols()) != 1:
            continue
        true = what if answer else what.negated()
        if not true.is_bound() or (env.during, true) in env.tried:
            continue
        env.tried.add((env.during, true))
        others = env.sizes_against(true)
        if others and _raises_at_all(env, operator, others):
            env.check(true)


def _raises_at_all(env: ShapeEnv, operator: Callable[[], object], others: Sequence[dict[str, int]]) -> bool:
    hints, asked = env.hints, len(env.asked)
    env.takes_notes = False
    try:
        for sizes in others:
            env.hints = {**hints, **sizes}
            try:
                operator()
            except Exception:  # torch's operators raise whatever they like
                continue
            return False
    finally:
        env.hints, env.takes_notes = hints, True
        del env.asked[asked:]
    return True
