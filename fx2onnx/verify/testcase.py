"""ONNX's test directory: ``model.onnx`` beside ``test_data_set_0`` with the inputs and what has to come out."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.files.staging import cannot_write
from fx2onnx.irx import io
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.names import MODEL_FILE

DATA_SET, REPRO, STATISTICS = "test_data_set_0", "repro.py", "weights.json"
WEIGHTS = ("full", "statistics")
LEAST_STRIPPED = 64
"""Weights of fewer numbers are kept: they are sizes, axes and scales, without which nothing runs."""


@dataclass(frozen=True)
class Case:
    """A model, and arrays by the names of its inputs and outputs."""

    model: ir.Model
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]


def write_case(
    folder: str | os.PathLike[str], case: Case, *, weights: str = "full", heading: str = "", repro: bool = True
) -> None:
    """Write ``case`` as the new ``folder``, whole or not at all.

    ``weights="statistics"`` puts random numbers of the same mean and spread in the place of every weight, whose statistics
    go to ``weights.json``, and leaves out the outputs, which are those of the true weights. ``heading`` becomes the first
    lines of ``repro.py``. Raises UserError E001, E301.
    """
    check_case(folder, weights)
    target = Path(os.path.abspath(folder))
    stage = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".fx2onnx-", dir=target.parent))
        _write_files(stage, case, weights, heading, repro)
        stage.chmod(0o755)
        if target.exists():
            target.rmdir()
        stage.rename(target)
    except OSError as cause:
        raise cannot_write(folder, cause) from cause
    finally:
        if stage is not None and stage.exists():
            shutil.rmtree(stage, ignore_errors=True)


def check_case(folder: str | os.PathLike[str], weights: str) -> None:
    """Raises UserError E001 for a word that is none of ``WEIGHTS``, E301 for a folder that holds something."""
    if weights not in WEIGHTS:
        raise UserError("E001", f"weights={weights!r} is not known", next=f"one of {', '.join(WEIGHTS)}")
    target = Path(os.path.abspath(folder))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError("E301", f"cannot write '{folder}'", why="it exists", next="name a folder that is new or empty")


def _write_files(folder: Path, case: Case, weights: str, heading: str, repro: bool) -> None:
    model = case.model
    is_stripped = weights == "statistics"
    if is_stripped:
        model = model.clone()
        statistics = {name: _strip(value) for name, value in model.graph.initializers.items() if _is_large(value)}
        (folder / STATISTICS).write_text(json.dumps(statistics, indent=1) + "\n", encoding="utf-8")
    io.save(model, folder / MODEL_FILE)
    (folder / DATA_SET).mkdir()
    _write_arrays(folder / DATA_SET, "input", [value.name or "" for value in model.graph.inputs], case.feeds)
    if not is_stripped:
        _write_arrays(folder / DATA_SET, "output", [value.name or "" for value in model.graph.outputs], case.outputs)
    if repro:
        (folder / REPRO).write_text(_repro(heading), encoding="utf-8")


def _write_arrays(folder: Path, side: str, names: Sequence[str], arrays: Mapping[str, Array]) -> None:
    for index, name in enumerate(names):
        if name in arrays:
            array = np.asarray(arrays[name])
            tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
            (folder / f"{side}_{index}.pb").write_bytes(ir.serde.serialize_tensor(tensor).SerializeToString())


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size >= LEAST_STRIPPED


def _strip(value: ir.Value) -> dict[str, Any]:
    """Random numbers in the place of a weight's; returns what they have in common with these."""
    tensor = value.const_value
    assert tensor is not None
    array = np.asarray(tensor.numpy()).astype(np.float64)
    mean, spread = float(array.mean()), float(array.std())
    drawn = np.random.default_rng(0).normal(mean, spread, array.shape)
    value.const_value = ir.Tensor(drawn.astype(tensor.numpy().dtype), dtype=tensor.dtype, name=value.name)
    return {
        "shape": list(array.shape),
        "dtype": tensor.dtype.name,
        "mean": mean,
        "std": spread,
        "min": float(array.min()),
        "max": float(array.max()),
    }


def _repro(heading: str) -> str:
    comment = "\n".join(f"# {line}".rstrip() for line in heading.splitlines())
    return f"{comment}\n{_REPRO}" if comment else _REPRO


_REPRO = '''\
"""Run model.onnx on test_data_set_0 in every engine that is installed, and compare with the outputs that are there."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

here = Path(__file__).parent


def arrays(side):
    paths = {int(path.stem.split("_")[1]): path for path in (here / "test_data_set_0").glob(f"{side}_*.pb")}
    return {index: numpy_helper.to_array(onnx.load_tensor(str(paths[index]))) for index in sorted(paths)}


def onnxruntime():
    import onnxruntime

    return onnxruntime.InferenceSession(str(here / "model.onnx"), providers=["CPUExecutionProvider"]).run


def runner():
    from fx2onnx.runner import InferenceSession

    return InferenceSession(str(here / "model.onnx")).run


def reference():
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(here / "model.onnx")).run


names = [value.name for value in onnx.load(str(here / "model.onnx"), load_external_data=False).graph.input]
inputs, wanted = arrays("input"), arrays("output")
for engine in (onnxruntime, runner, reference):
    try:
        results = engine()(None, {names[index]: array for index, array in inputs.items()})
    except Exception as error:  # each engine has classes of its own
        print(f"{engine.__name__}: {type(error).__name__}: {error}")
        continue
    for index, result in enumerate(results):
        text = f"{engine.__name__}: output {index} {np.asarray(result).dtype}{list(np.shape(result))}"
        if index in wanted and np.shape(result) == wanted[index].shape:
            gap = np.abs(np.asarray(result, np.float64) - np.asarray(wanted[index], np.float64))
            text += f", largest difference {np.nanmax(gap, initial=0.0):.6g}"
        print(text)
'''
