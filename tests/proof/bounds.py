"""Bounds of a model against its runs: in the runner and onnxruntime, beside float64."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.proof.domains import ValueRanges
from fx2onnx.proof.nodes import OpenedFile
from fx2onnx.proof.ranges import start

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
NARROW = (FLOAT, onnx.TensorProto.FLOAT16)


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph)
    return wide


def _widen(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in NARROW:
            value.type.tensor_type.elem_type = DOUBLE
    tensors = [*graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen(attribute.g)
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            if attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = DOUBLE
    for tensor in tensors:
        if tensor.data_type in NARROW:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def inputs_within(
    model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], count: int
) -> Iterator[dict[str, Any]]:
    """Inputs of the ranges: both ends, ends mixed, and random ones."""
    generator = np.random.default_rng(count)
    for draw in range(count):
        feeds = {}
        for value in model.graph.input:
            kind = value.type.tensor_type
            shape, (low, high) = [dim.dim_value for dim in kind.shape.dim], ranges[value.name]
            drawn = generator.uniform(low, high, shape)
            mixed = np.where(generator.random(shape) < 0.5, low, high)
            array = np.full(shape, (low, high)[draw]) if draw < 2 else mixed if draw % 2 else drawn
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            feeds[value.name] = np.asarray(np.rint(array) if dtype.kind in "iub" else array).astype(dtype)
        yield feeds


def assert_bounds_hold(
    model: onnx.ModelProto,
    ranges: Mapping[str, tuple[float, float]],
    *,
    draws: int = 8,
    beside: bool = True,
) -> ValueRanges:
    """Values and rounding are inside of the bounds on inputs of the ranges, and numbers that are none are found.

    beside: also in onnxruntime.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(model, path)
        with np.errstate(all="ignore"):
            walk = start(OpenedFile(path), ranges, {})
            found = walk.run()
    content = model.SerializeToString()
    engines = [fx2onnx.runner.InferenceSession(content)]
    if beside:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        engines.append(onnxruntime.InferenceSession(content, options))
    try:
        wide = fx2onnx.runner.InferenceSession(in_double(model).SerializeToString())
    except UserError:  # an operator that takes no float64: the bounds of floats alone are checked
        wide = None
    names = [value.name for value in model.graph.output]
    kinds = {each.kind for each in found.findings}
    for feeds in inputs_within(model, ranges, draws):
        far = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()}
        try:
            runs = [session.run(None, feeds) for session in engines]
            exact = dict(zip(names, runs[0] if wide is None else wide.run(None, far), strict=True))
        except Exception:  # both engines refuse an index out of range, by errors of their own
            if "index" not in kinds:
                raise
            continue
        for place, name in enumerate(names):
            span = walk.known(name)
            if span is None:
                assert found.unknown, name
                continue
            for got in (run[place] for run in runs):
                assert name not in walk.spans or span.low.shape == got.shape, name
                low, high, error, lowest = (
                    np.broadcast_to(each, got.shape) for each in (span.low, span.high, span.error, span.lowest)
                )
                want = exact[name] if exact[name].shape == got.shape else got
                sane = np.isfinite(got.astype(np.float64)) & np.isfinite(want.astype(np.float64))
                assert sane.all() or kinds, (name, feeds, got)
                numbers = got.astype(np.float64)[sane]
                assert (numbers >= (low - error)[sane]).all(), (name, "below", feeds)
                assert (numbers <= (high + error)[sane]).all(), (name, "above", feeds)
                assert (numbers >= lowest[sane]).all(), (name, "lowest", feeds)
                if wide is not None and want is not got:
                    real = want.astype(np.float64)[sane]
                    assert (np.abs(numbers - real) <= error[sane]).all(), (name, "rounding", feeds)
                    assert ((low[sane] <= real) & (real <= high[sane])).all(), (name, "range", feeds)
    return found
