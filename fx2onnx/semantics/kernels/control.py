"""If, Loop, Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from fx2onnx.semantics.kernels.softmax import check_axis
from fx2onnx.semantics.limits import check_bytes, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, Value, shape_of


class Body(Protocol):
    """A graph as a function from its inputs to its outputs."""

    def __call__(self, inputs: Sequence[Value], /) -> list[Value]: ...

    def none_stacked(self, index: int, shapes: Sequence[tuple[int, ...]], /) -> Any:
        """Output ``index`` of no run at all, stacked; ``shapes`` are those that its inputs would have."""


def flag(value: Array) -> bool:
    """A condition: one boolean."""
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size != 1:
        raise TypeError("a condition must be one boolean")
    return bool(value.reshape(()))


@kernel("If", shape_inputs=None)
def if_(condition: Array, *, then_branch: Body, else_branch: Body, n_outputs: int) -> tuple[Value, ...]:
    """The outputs of one of the two bodies."""
    outputs = then_branch([]) if flag(condition) else else_branch([])
    if len(outputs) < n_outputs:
        raise ValueError(f"the branch has {len(outputs)} outputs, the node {n_outputs}")
    return tuple(outputs)


@kernel("Loop", shape_inputs=None)
def loop(
    trip_count: Array | None = None,
    condition: Array | None = None,
    *carried: Value,
    body: Body,
    n_outputs: int,
) -> tuple[Value, ...]:
    """The body again and again; carried values, then what each iteration gave, stacked."""
    state = list(carried)
    limit = None if trip_count is None else int(trip_count.reshape(()))
    running = True if condition is None else flag(condition)
    scans: list[list[Array]] = [[] for _ in range(n_outputs - len(state))]
    iteration, kept_bytes = 0, 0
    while running and (limit is None or iteration < limit):
        count_iteration()
        outputs = body([np.array(iteration, INT64), np.array(True), *state])
        if len(outputs) != 1 + len(state) + len(scans):
            raise ValueError(f"the body has {len(outputs)} outputs, the node needs {1 + len(state) + len(scans)}")
        running = flag(outputs[0])
        state = outputs[1 : 1 + len(state)]
        for collected, item in zip(scans, outputs[1 + len(state) :], strict=True):
            collected.append(np.array(item))
            kept_bytes += item.nbytes
        check_bytes(kept_bytes, "what a Loop collects")
        iteration += 1
    shapes = [(), (), *map(shape_of, state)]
    last = enumerate(scans, 1 + len(state))
    return (*state, *(np.stack(items) if items else body.none_stacked(index, shapes) for index, items in last))


def scan_layout(
    sequences: Sequence[Array], n_inputs: int, num_scan_inputs: int, scan_input_axes: Sequence[int] | None
) -> tuple[list[int], int]:
    """The scanned axis of each sequence, and how long they are. Raises: ValueError where that does not fit."""
    if not 1 <= num_scan_inputs <= n_inputs:
        raise ValueError(f"num_scan_inputs is {num_scan_inputs} for {n_inputs} inputs")
    axes = [check_axis(a, s.ndim) for a, s in zip(scan_input_axes or [0] * len(sequences), sequences, strict=True)]
    lengths = {sequence.shape[axis] for sequence, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise ValueError(f"the scanned inputs have different lengths: {sorted(lengths)}")
    return axes, lengths.pop()


@kernel("Scan", 9, shape_inputs=None)
def scan(
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Value, ...]:
    """The body over slices of the last ``num_scan_inputs`` inputs; the others are carried."""
    n_state = max(len(inputs) - num_scan_inputs, 0)
    state, sequences = list(inputs[:n_state]), inputs[n_state:]
    axes, length = scan_layout(sequences, len(inputs), num_scan_inputs, scan_input_axes)
    backward = scan_input_directions or [0] * len(sequences)
    n_scans = n_outputs - n_state
    collected: list[list[Array]] = [[] for _ in range(n_scans)]
    kept_bytes = 0
    for step in range(length):
        count_iteration()
        slices = [
            np.take(sequence, length - 1 - step if back else step, axis=axis)
            for sequence, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        outputs = body([*state, *map(np.asarray, slices)])
        if len(outputs) != n_outputs:
            raise ValueError(f"the body has {len(outputs)} outputs, the node needs {n_outputs}")
        state = outputs[:n_state]
        for items, item in zip(collected, outputs[n_state:], strict=True):
            items.append(np.array(item))
            kept_bytes += item.nbytes
        check_bytes(kept_bytes, "what a Scan collects")
    out_axes = scan_output_axes or [0] * n_scans
    out_backward = scan_output_directions or [0] * n_scans
    of_slices = [(*s.shape[:axis], *s.shape[axis + 1 :]) for s, axis in zip(sequences, axes, strict=True)]
    shapes = [*map(shape_of, state), *of_slices]
    results = []
    for index, (items, axis, back) in enumerate(zip(collected, out_axes, out_backward, strict=True), n_state):
        if items:
            results.append(np.stack(items[::-1] if back else items, axis=axis))
        else:
            results.append(np.moveaxis(body.none_stacked(index, shapes), 0, axis))
    return (*state, *results)


@kernel("Scan", 8, shape_inputs=None)
def scan_8(
    lengths: Array | None,
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Value, ...]:
    """Scan of opset 8: every input has a batch axis first, then the scanned axis."""
    batch = inputs[0].shape[0]
    longest = inputs[-1].shape[1]
    rows = []
    for index in range(batch):
        size = longest if lengths is None else int(lengths[index])
        n_state = len(inputs) - num_scan_inputs
        row = [value[index] for value in inputs[:n_state]] + [value[index][:size] for value in inputs[n_state:]]
        outputs = scan(
            *row, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions, n_outputs=n_outputs
        )
        rows.append([_grown(item, longest) if position >= n_state else item for position, item in enumerate(outputs)])
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def _grown(item: Array, length: int) -> Array:
    if item.shape[0] == length:
        return item
    y = np.zeros((length, *item.shape[1:]), item.dtype)
    y[: item.shape[0]] = item
    return y
