"""The conditions of operators on sizes that torch checks with a plain comparison, behind which an error is raised.

torch's kernels say ``torch._check`` and ``TORCH_SYM_CHECK`` of some of their needs, which is seen at once. Of others they only compare
sizes, as they do to choose how they go through memory. So the operator is run on fakes once more, at sizes for which the answer
would be another: where it raises, eager PyTorch does, too, unless its own kernel takes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fx2onnx.capture.op_table import Op
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.relation import Relation

_TAKES_EVERY_SIZE = "aten::unbind"
"""An overload whose kernel asks for the number of its results only."""


def note_needs(
    env: ShapeEnv,
    operator: Callable[[], object],
    is_taken: Callable[[], bool],
    operands: Sequence[object],
    result: object,
    since: int,
) -> None:
    """Make conditions of those questions, asked in ``env`` behind the first ``since``, behind which the operator raises, and that the
    first of ``operands`` and the result are not empty, where it needs that. ``is_taken``: whether the real kernel is known to take
    the call.
    """
    if not env.unbacked and env.during != _TAKES_EVERY_SIZE:
        _note_what_ends_runs(env, operator, is_taken, since)
    if env.during in Op.NEEDS_ELEMENTS.names and isinstance(result, torch.Tensor):
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                env.check_some((*dims_of(operand)[1:], *dims_of(result)[1:]))


def _note_what_ends_runs(
    env: ShapeEnv, operator: Callable[[], object], is_taken: Callable[[], bool], since: int
) -> None:
    for how, what, answer in env.asked[since:]:
        if how != "guard" or not isinstance(what, Relation) or len(what.symbols()) != 1:
            continue
        true = what if answer else what.negated()
        if not true.is_bound():
            continue
        if (env.during, true) in env.tried:
            env.leans |= env.tried[env.during, true]
            continue
        others = env.facts.sizes_against(true)
        ends_run = bool(others) and _raises_at_all(env, operator, is_taken, others)
        env.tried = {**env.tried, (env.during, true): ends_run}
        if ends_run:
            env.check(true)


def _raises_at_all(
    env: ShapeEnv, operator: Callable[[], object], is_taken: Callable[[], bool], others: Sequence[dict[str, int]]
) -> bool:
    for sizes in others:
        with env.tried_at(sizes):
            try:
                operator()
            except Exception:  # torch's operators raise whatever they like
                if not is_taken():
                    continue
            return False
    return True
