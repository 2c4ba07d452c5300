"""Both files of a ``diff`` on the same random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir

from fx2onnx.base.errors import Fx2OnnxError, first_line
from fx2onnx.cli.feeds import check_dims
from fx2onnx.judge.arrays import largest_difference
from fx2onnx.judge.engines import ENGINES, chosen_engines
from fx2onnx.judge.feeds import candidate_sizes, conditions_of, dim_names, inputs_of, taken_feeds


def check_engine(name: str) -> None:
    """Raises UserError E001 for an unknown engine, E602 for one that is not installed."""
    chosen_engines([name])


def compare_outputs(first: Path, second: Path, engine: str, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """``{"engine", "seed", "sizes", "outputs": [{"output", "largest", "scale", "problem"}], "note"}``.

    ``note`` says why nothing was compared: other inputs, or an engine that does not run a file. Raises UserError E001 for a
    dim that no input has.
    """
    result: dict[str, Any] = {"engine": engine, "seed": seed, "sizes": {}, "outputs": [], "note": ""}
    one, other = (
        onnx_ir.serde.deserialize_model(onnx.load(path, load_external_data=False)) for path in (first, second)
    )
    inputs, others = inputs_of(one), inputs_of(other)
    if {each.name: each.dtype for each in inputs} != {each.name: each.dtype for each in others}:
        return {**result, "note": "the files take other inputs"}
    check_dims([dim for each in inputs for dim in (*(each.dims or ()), *dim_names(each))], dims)
    conditions = [*conditions_of(one), *conditions_of(other)]
    if next(candidate_sizes(inputs, conditions, dims), None) is None:
        return {**result, "note": "no sizes were found that both files are right for; give them with --dim"}
    file = first
    try:
        taken = next(taken_feeds(inputs, ENGINES[engine](str(first)), conditions, dims, seed), None)
        if taken is None:
            return {**result, "note": "no random values for inputs that are no tensors, or of no known rank"}
        file = second
        after = ENGINES[engine](str(second))(taken.feeds)
    except Exception as cause:  # each engine has classes of its own
        why = cause.what if isinstance(cause, Fx2OnnxError) else f"{type(cause).__name__}: {first_line(cause)[:200]}"
        return {**result, "note": f"{engine} does not run {file}: {why}"}
    result["sizes"] = {name: size for name, size in taken.sizes.items() if name.isidentifier()}
    names, other_names = ([value.name for value in model.graph.outputs] for model in (one, other))
    if set(names) == set(other_names):
        after = [after[other_names.index(name)] for name in names]
    pairs = zip(names, taken.results, after, strict=False)
    return {**result, "outputs": [_compared(name or "", *values) for name, *values in pairs]}


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
