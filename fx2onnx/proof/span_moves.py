"""Operators on spans whose outputs hold elements of their operands: moves, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import RULES, Call, Interval, Unbounded, rule

MOVED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *(
                "Reshape",
                "Flatten",
                "Squeeze",
                "Unsqueeze",
                "Transpose",
                "Slice",
                "Split",
                "Expand",
                "Tile",
                "Identity",
            ),
            *(
                "DepthToSpace",
                "SpaceToDepth",
                "CenterCropPad",
                "Trilu",
                "ReverseSequence",
                "Compress",
                "GatherElements",
                "GatherND",
            ),
        ),
        (0,),
    ),
    "Pad": (0, 2),
    "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
    "Concat": (),
}
"""Operators whose outputs hold elements of these operands; of none: of all."""
_INDEXED = frozenset(["GatherElements", "GatherND", "ScatterElements", "ScatterND"])


def _moved(call: Call) -> list[Interval]:
    """Each output element is one of an operand's, or a sum or extreme of some."""
    if call.attrs.get("reduction", "none") not in ("none", b"none"):
        return [_reduced(call)]
    if call.op_type in _INDEXED and call.span(1).value is None:
        return [_anywhere(call)]
    data = MOVED[call.op_type] or range(len(call.args))
    rest = [None if not call.has(index) or index in data else call.constant(index) for index in range(len(call.args))]

    def run(pick: Callable[[Interval], Array]) -> list[Array]:
        taken = [pick(call.span(i)) if i in data and call.has(i) else rest[i] for i in range(len(call.args))]
        return call.run(*taken, outputs=call.outputs)

    parts = zip(*map(run, (lambda s: s.low, lambda s: s.high, lambda s: s.error, lambda s: s.lowest)), strict=True)
    return [Interval(low, high, error, None, least) for low, high, error, least in parts]


def _reduced(call: Call) -> Interval:
    """Elements that updates are added to, or that an update may replace, at places that are the same for all inputs."""
    data, places, new = call.span(0), call.constant(1), call.span(2)
    reduction = str(call.attrs["reduction"])
    if reduction == "mul":
        raise Unbounded("a product of updates")
    low, high = (call.run(getattr(data, end), places, getattr(new, end))[0] for end in ("low", "high"))
    if reduction != "add":
        return Interval(low, high, call.run(data.error, places, new.error, reduction="max")[0])
    error, size = (call.run(getattr(data, end), places, getattr(new, end))[0] for end in ("error", "reach"))
    return Interval.between(low, high, error + call.rounded(size, new.low.size + 1))


def _anywhere(call: Call) -> Interval:
    """Elements from, or written to, places that inputs choose: between the bounds of all of them."""
    data = call.span(0)
    if call.op_type.startswith("Gather"):
        shape = call.run(data.low, np.zeros(call.span(1).low.shape, np.int64))[0].shape
        ends = data.low.min(initial=np.inf), data.high.max(initial=-np.inf), data.error.max(initial=0)
        return Interval(*(np.full(shape, end) for end in ends))
    new = call.span(2)
    low, high = np.minimum(data.low, new.low.min(initial=np.inf)), np.maximum(data.high, new.high.max(initial=-np.inf))
    return Interval(low, high, np.maximum(data.error, new.error.max(initial=0)))


RULES.update(dict.fromkeys(MOVED, _moved))


@rule("Dropout")
def _dropout(call: Call) -> list[Interval]:
    if call.has(2) and call.constant(2).any():
        raise LookupError("Dropout")
    return [call.span(0)]


@rule("Gather")
def _gather(call: Call) -> Interval:
    """Rows at places that are between two bounds have the bounds of all rows between them."""
    data, places = call.span(0), call.span(1)
    axis = int(call.attrs.get("axis", 0)) % data.low.ndim
    rows = data.low.shape[axis]
    if places.value is not None:
        return Interval(*(call.run(each, places.value)[0] for each in (data.low, data.high, data.error)))
    first, last = np.clip(places.low.min(), -rows, rows - 1), np.clip(places.high.max(), -rows, rows - 1)
    part = slice(None) if first < 0 <= last else slice(int(first) % rows, int(last) % rows + 1)
    index = (*(slice(None),) * axis, part)
    shape = (*data.low.shape[:axis], *places.low.shape, *data.low.shape[axis + 1 :])
    ones = (*data.low.shape[:axis], *(1,) * places.low.ndim, *data.low.shape[axis + 1 :])
    found = [data.low[index].min(axis), data.high[index].max(axis), data.error[index].max(axis)]
    return Interval(*(np.broadcast_to(each.reshape(ones), shape) for each in found))
