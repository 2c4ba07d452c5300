"""Decoders whose graphs hold operators of ours: how these are written, and what is asked of such a module around an export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fx2onnx.aten_map.fused_attention import cache_update, cached_attention, turned
from fx2onnx.decoding.adapters import product_inputs
from fx2onnx.decoding.cache.grouped import GroupedDecoder
from fx2onnx.decoding.cache.rotary import CACHED_ATTENTION, TURNED
from fx2onnx.decoding.cache.static import OVERLOAD, StaticDecoder
from fx2onnx.manifest.names import ENCODER_STATES, POSITIONS

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source


def translations_of(module: Any) -> dict[Any, Callable[..., Any]] | None:
    """Translations of a decoder's own operators."""
    if isinstance(module, StaticDecoder):
        return {OVERLOAD: cache_update}
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
