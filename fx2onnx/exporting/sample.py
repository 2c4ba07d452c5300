"""Sample arguments as the inputs of the exported model, and calibration data, for what is measured on it before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.memory import free_bytes
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.driver import as_module
from fx2onnx.capture.python.inputs import bind, normalise_args
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.manifest.names import BATCH, MASK, PAST, POSITIONS, TOTAL
from fx2onnx.optimize.weights import lacks_data

if TYPE_CHECKING:
    from fx2onnx.quantize.calibration import Data, Feeds


def data_for(given: Any, model: ir.Model) -> Data:
    """``Quantize.calibration`` as runs of ``model``; of one that takes a past, prompts alone will do.

    There rows of a batch are runs of their own, the past is empty, every token is seen, and positions count from 0.
    """
    from fx2onnx.quantize.calibration import data_of

    data = data_of(given, model)
    if not any((value.name or "").startswith(PAST) for value in model.graph.inputs):
        return data
    inputs = {value.name or "": value for value in model.graph.inputs}
    return replace(data, runs=[_completed(row, inputs) for feeds in data.runs for row in _rows(feeds, inputs)])


def _rows(feeds: Feeds, inputs: Mapping[str, ir.Value]) -> Iterator[Feeds]:
    counts = {len(array) for name, array in feeds.items() if array.ndim and _first_dim(inputs.get(name)) == BATCH}
    if len(counts) != 1 or not all(_first_dim(inputs.get(name)) == BATCH for name in feeds):
        yield feeds
        return
    for index in range(counts.pop()):
        yield {name: array[index : index + 1] for name, array in feeds.items()}


def _first_dim(value: ir.Value | None) -> str:
    return _dims(value)[0] if value is not None and value.shape is not None and len(value.shape) else ""


def _dims(value: ir.Value) -> list[str]:
    return [str(dim if isinstance(dim, int) else dim.value) for dim in value.shape or ()]


def _completed(feeds: Feeds, inputs: Mapping[str, ir.Value]) -> Feeds:
    """The feeds with an empty past, a mask that hides nothing and positions from 0, where these are inputs and not given."""
    sizes: dict[str, int] = {}
    for name, array in feeds.items():
        if name in inputs:
            sizes |= dict(zip(_dims(inputs[name]), array.shape, strict=False))
    length = next((array.shape[1] for name, array in feeds.items() if array.ndim > 1), 0)
    found = dict(feeds)
    for name, value in inputs.items():
        if name in feeds or value.dtype is None or not (name.startswith(PAST) or name in (MASK, POSITIONS)):
            continue
        unknown = 0 if name.startswith(PAST) else length
        known = {**sizes, TOTAL: length} if name == MASK else sizes
        shape = [int(dim) if dim.isdecimal() else known.get(dim, unknown) for dim in _dims(value)]
        found[name] = np.full(shape, name == MASK, value.dtype.numpy())
        if name == POSITIONS:
            found[name] = np.broadcast_to(np.arange(shape[-1], dtype=value.dtype.numpy()), shape).copy()
    return found


LARGEST_SHARE = 0.25
"""A share of the free memory: weights that are no larger are run once more, to measure what their rounding does."""


def check_weights_may_change(options: ExportOptions, keyword: str) -> None:
    """Raises UserError E001 for options that ask for the weights as they are."""
    wanted = {
        "weights by reference": bool(options.weight_files),
        "export_params=False": not options.export_params,
        "keep_initializers_as_inputs": options.keep_initializers_as_inputs,
        "training=": options.capture.training is not False and keyword == "dtype=",
    }
    for name, is_asked in wanted.items():
        if is_asked:
            raise UserError("E001", f"{name} keeps the weights, {keyword} changes them", next="leave out one of both")


@dataclass(frozen=True)
class Sample:
    """Arguments of the module that was captured: what the model can be run on (``steps.list.Measurable``)."""

    captured: Captured
    module: Any
    args: Any
    kwargs: Mapping[str, Any] | None
    input_names: Sequence[str] | None

    @property
    def known(self) -> set[str]:
        """Names of the module's weights."""
        return {weight.name for weight in self.captured.weights.values() if weight.kind != "constant"}

    def samples(self, model: ir.Model, more: Sequence[Any]) -> tuple[list[Feeds], str]:
        """The arguments and ``more`` of them as the model's inputs; none, and why, where the arguments have no numbers. Raises
        UserError E001 where one does not fit.
        """
        first, problem = self.feeds(model)
        if first is None:
            return [], problem
        found = [first]
        for each in more:
            args, kwargs = ((), each) if isinstance(each, Mapping) else (each, self.kwargs)
            feeds, why = replace(self, args=args, kwargs=kwargs).feeds(model)
            if feeds is None:
                raise UserError("E001", "one of the samples does not fit the model", why=why)
            found.append(feeds)
        return found, ""

    def calibration(self, given: Any, model: ir.Model) -> Data:
        """The user's calibration data as runs of the model (``data_for``)."""

        return data_for(given, model)

    def feeds(self, model: ir.Model) -> tuple[Feeds | None, str]:
        """The arguments as the model's inputs, or why there are none."""
        tensors = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
        if any(map(lacks_data, tensors)):
            return None, "the module has no numbers"
        if sum(tensor.nbytes for tensor in tensors) > LARGEST_SHARE * free_bytes():
            return None, "a run of the model needs more memory than is free"
        from fx2onnx.verify.arrays import to_numpy
        from fx2onnx.verify.interface import assign

        root = as_module(self.module)
        positional, named = normalise_args(root, self.args, self.kwargs)
        leaves = bind(root.forward, positional, named, self.input_names).leaves
        inputs = [value.name or "" for value in model.graph.inputs]
        if any(leaf.tensor.device.type == "meta" for leaf in leaves) or len(inputs) > len(leaves):
            return None, "the sample arguments have no numbers"
        names = assign([leaf.name for leaf in leaves], inputs, self.captured.baked)
        with torch.no_grad():
            feeds = {name: to_numpy(leaf.tensor) for name, leaf in zip(names, leaves, strict=True) if name is not None}
        return (feeds, "") if set(feeds) == set(inputs) else (None, "the model has inputs beside the arguments")
