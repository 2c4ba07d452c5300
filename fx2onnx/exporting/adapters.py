"""Decoders in a folder: the operators of ours in their graphs, and the files and inputs of adapters that are switched at run time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.fused_attention import cache_update, cached_attention, turned
from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import OPTIONAL_INPUTS
from fx2onnx.decoding.adapters import product_inputs
from fx2onnx.decoding.cache.grouped import GroupedDecoder
from fx2onnx.decoding.cache.rotary import CACHED_ATTENTION, TURNED
from fx2onnx.decoding.cache.static import OVERLOAD, PAGE_OVERLOAD, StaticDecoder
from fx2onnx.files import onnx_adapter
from fx2onnx.manifest.form import AdapterFile
from fx2onnx.manifest.names import AUDIO_FILE, ENCODER_STATES, IMAGE_FILE, POSITIONS

if TYPE_CHECKING:
    import torch

    from fx2onnx.decoding.adapters import Adapters
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.irx.emit import Emit
    from fx2onnx.sources import Source


def make_optional(adapters: Adapters | None, results: Mapping[str, ExportResult]) -> None:
    """Give the inputs of products their defaults, with which a graph computes what the base does.

    Raises:   UserError E601 where a layer is in no graph, or in one that ``generate`` gives no adapter.
    """
    if adapters is None:
        return
    defaults = {name: value for layer in adapters.layers.values() for name, value in layer.defaults().items()}
    found: set[str] = set()
    for file, result in results.items():
        graph = result.owned.model.graph
        inputs = [value for value in graph.inputs if value.name in defaults]
        names = {value.name for value in inputs}
        for layer in adapters.layers.values():
            weight = next((name for name in graph.initializers if f"{layer.name}.weight" in name), None)
            if weight is not None and not layer.is_tied and names.isdisjoint(layer.defaults()):
                raise _no_place(f"{file} reads {weight} and does not call the layer")
        if inputs and file in (IMAGE_FILE, AUDIO_FILE):
            raise _no_place(f"{inputs[0].name} is an input of {file}, which adapters do not reach")
        for value in inputs:
            assert value.name is not None
            assert value.dtype is not None
            value.const_value = ir.tensor(_array(defaults[value.name], value.dtype.numpy()), name=value.name)
            graph.register_initializer(value)
            found.add(value.name)
        if inputs:
            result.owned.model.metadata_props[OPTIONAL_INPUTS] = "true"
    lost = next((name for name in defaults if name not in found), None)
    if lost is not None:
        raise _no_place(f"no graph calls the layer of {lost}")


def write_adapters(
    adapters: Adapters | None, results: Mapping[str, ExportResult], stage: Path
) -> tuple[AdapterFile, ...]:
    """A file for each adapter, in the dtype of the graphs."""
    if adapters is None:
        return ()
    graphs = [result.owned.model.graph for result in results.values()]
    dtypes: dict[str | None, Any] = {
        value.name: value.dtype.numpy() for graph in graphs for value in graph.inputs if value.dtype is not None
    }
    made = []
    for name in adapters:
        file = f"{name}{onnx_adapter.SUFFIX}"
        values = {key: _array(value, dtypes[key]) for key, value in adapters.values(name).items()}
        onnx_adapter.write(stage / file, onnx_adapter.Adapter(values, 1, 1))
        made.append(AdapterFile(name, file))
    return tuple(made)


def _array(value: torch.Tensor, dtype: Any) -> np.ndarray[Any, Any]:
    return value.numpy(force=True).astype(dtype)


def _no_place(why: str) -> UserError:
    return UserError(
        "E601", "the adapters cannot be switched at run time", why=why, next="merge one: hf:FOLDER?adapter=ADAPTER"
    )


def _page_update(op: Emit, pages: ir.Value, update: ir.Value, places: ir.Value) -> ir.Value:
    return op.ScatterND(pages, places, update)


def translations_of(module: Any) -> dict[Any, Callable[..., Any]] | None:
    """Translations of a decoder's own operators."""
    if isinstance(module, StaticDecoder):
        return {OVERLOAD: cache_update, PAGE_OVERLOAD: _page_update}
    return {CACHED_ATTENTION: cached_attention, TURNED: turned} if isinstance(module, GroupedDecoder) else None


def as_file(module: Any) -> contextlib.AbstractContextManager[None]:
    """A block in which the module calls its operators."""
    return module.as_file() if isinstance(module, GroupedDecoder) else contextlib.nullcontext()


def samples_of(module: Any) -> list[dict[str, Any]]:
    """Further inputs to compare with, beside those of the export."""
    return module.samples if isinstance(module, GroupedDecoder) else []


def drop_unused(result: ExportResult, source: Source) -> None:
    """The encoder's states, where cross attention has all it needs in the cache; positions that attention counts itself; the
    products of layers that the graph does not call.
    """
    names = {ENCODER_STATES, *product_inputs(source.module)}
    names |= {POSITIONS} if isinstance(source.module, GroupedDecoder) else set()
    graph = result.owned.model.graph
    for value in [v for v in graph.inputs if v.name in names and not v.uses()]:
        graph.inputs.remove(value)
        for inputs in (source.kwargs, *samples_of(source.module)):
            inputs.pop(value.name or "", None)
    result.report.input_names = [value.name or "" for value in graph.inputs]
