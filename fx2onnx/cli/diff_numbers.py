"""Both files of a ``diff`` on the same random inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line
from fx2onnx.cli.feeds import make_feeds
from fx2onnx.diff.weights import largest_difference
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.stated import SizeCondition, sizes_near
from fx2onnx.sizes.text import parse_dim, root_of, size_of

USUAL_SIZE = 2
"""Of dims that nobody gives a size: 1 would hide what broadcasting does."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input as sessions describe theirs."""

    name: str
    type: str
    shape: Sequence[int | str | None]


def check_engine(name: str) -> None:
    """Raises UserError E001 for an unknown engine, E602 for one that is not installed."""
    from fx2onnx.judge.engines import chosen_engines

    chosen_engines([name])


def compare_outputs(first: Path, second: Path, engine: str, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """``{"engine", "seed", "sizes", "outputs": [{"output", "largest", "scale", "problem"}], "note"}``.

    ``note`` says why nothing was compared: other inputs, or an engine that does not run a file. Raises UserError E001 for a
    dim that no input has.
    """
    result: dict[str, Any] = {"engine": engine, "seed": seed, "sizes": {}, "outputs": [], "note": ""}
    one, other = _read(first), _read(second)
    inputs, others = _inputs(one), _inputs(other)
    if {value.name: value.type for value in inputs} != {value.name: value.type for value in others}:
        return {**result, "note": "the files take other inputs"}
    sizes = _sizes(inputs, [*_conditions(one), *_conditions(other)], dims)
    if sizes is None:
        return {**result, "note": "no sizes were found that both files are right for; give them with --dim"}
    result["sizes"] = {name: size for name, size in sizes.items() if name.isidentifier()}
    try:
        feeds = make_feeds(inputs, {}, sizes, seed)
    except UserError as error:
        if error.code == "E001":
            raise
        return {**result, "note": error.what}
    runs = []
    for path in (first, second):
        try:
            runs.append(_run(path, engine, feeds))
        except Exception as cause:  # each engine has classes of its own
            why = (
                cause.what if isinstance(cause, Fx2OnnxError) else f"{type(cause).__name__}: {first_line(cause)[:200]}"
            )
            return {**result, "note": f"{engine} does not run {path}: {why}"}
    names, other_names = ([value.name for value in proto.graph.output] for proto in (one, other))
    if set(names) == set(other_names):
        runs[1] = [runs[1][other_names.index(name)] for name in names]
    pairs = zip(names, *runs, strict=False)
    return {**result, "outputs": [_compared(name, before, after) for name, before, after in pairs]}


def _read(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def _inputs(proto: onnx.ModelProto) -> list[Input]:
    weights = {tensor.name for tensor in proto.graph.initializer}
    return [_input(value) for value in proto.graph.input if value.name not in weights]


def _input(value: onnx.ValueInfoProto) -> Input:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return Input(value.name, "no tensor of a known rank", ())
    kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    return Input(value.name, f"tensor({kind})", dims)


def _conditions(proto: onnx.ModelProto) -> list[SizeCondition]:
    found = {entry.key: entry.value for entry in proto.metadata_props}
    return size_conditions.read(found.get(size_conditions.METADATA_KEY, "[]"))


def _sizes(
    inputs: Sequence[Input], conditions: Collection[SizeCondition], dims: Mapping[str, int]
) -> dict[str, int] | None:
    """Of every dim, expressions of dims included, a small size that keeps all conditions; None where none was found."""
    texts = {dim for value in inputs for dim in value.shape if isinstance(dim, str)}
    names = {root.name for text in texts if (root := root_of(text)) is not None} | {
        text for text in texts if root_of(text) is None and not isinstance(parse_dim(text), Dim)
    }
    given = {name: size for name, size in dims.items() if name in names}
    wanted = dict.fromkeys(sorted(names), USUAL_SIZE) | given
    found = sizes_near(wanted, conditions, unlike={})
    if found is None or any(found[name] != size for name, size in given.items()):
        return None
    computed = {text: size_of(dim, found) for text in texts if isinstance(dim := parse_dim(text), Dim)}
    if None in computed.values():
        return None
    return {**dims, **found, **{text: size for text, size in computed.items() if size is not None}}


def _run(path: Path, engine: str, feeds: dict[str, Any]) -> list[Any]:
    """All outputs. The engine is gone with its memory when the other file is opened."""
    from fx2onnx.judge.engines import ENGINES

    return ENGINES[engine](str(path))(feeds)


def _compared(name: str, before: Any, after: Any) -> dict[str, Any]:
    row = {"output": name, "largest": None, "scale": None, "problem": ""}
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return {**row, "problem": "no tensor"}
    if before.shape != after.shape or before.dtype != after.dtype:
        kinds = (f"{array.dtype} {list(array.shape)}" for array in (before, after))
        return {**row, "problem": " and ".join(kinds)}
    largest, scale = largest_difference(before, after)
    if largest is None and not np.array_equal(before, after):
        row["problem"] = "other strings"
    return {**row, "largest": largest, "scale": scale}
