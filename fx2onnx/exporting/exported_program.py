"""The parts of a ``torch.export.ExportedProgram`` that an export needs: its example arguments and its dynamic sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from fx2onnx.capture.driver import as_module
from fx2onnx.capture.rare_roads import road
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.torchcompat.pytrees import pytree


def completed(
    module: Any, args: Any, kwargs: Mapping[str, Any] | None, options: ExportOptions
) -> tuple[Any, Mapping[str, Any] | None, ExportOptions]:
    """Arguments and options of an export: what is not given comes from the samples, or from the program where ``module`` is one."""
    is_program = isinstance(module, torch.export.ExportedProgram)
    has_none = not kwargs and (args is None if is_program or options.capture.samples else False)
    if has_none or (isinstance(args, tuple | list) and not args and not kwargs):
        if options.capture.samples:
            args, kwargs = road("several calls").fullest(as_module(module), options.capture.samples)
        elif is_program:
            args, kwargs = module.example_inputs or ((), {})
    if not is_program:
        return args, kwargs, options
    asked = options.capture
    if asked.dynamic_shapes is None and asked.dynamic_axes is None:
        options = replace(options, capture=replace(asked, dynamic_shapes=dynamic_shapes_of(module)))
    return args, kwargs, options


def dynamic_shapes_of(program: torch.export.ExportedProgram) -> tuple[Any, ...] | None:
    """The dynamic shapes that ``torch.export.export`` takes, an entry an argument; None where every size is fixed."""
    kinds = [spec.kind for spec in program.graph_signature.input_specs]
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node, kind in zip(inputs, kinds, strict=True) if kind is InputKind.USER_INPUT]
    shapes = [_axes(value, program.range_constraints) for value in values]
    if not any(shapes):
        return None
    args, kwargs = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    return (*args, *kwargs.values())


def _axes(value: Any, ranges: Mapping[Any, Any]) -> dict[int, Any] | None:
    sizes: Iterable[tuple[int, Any]] = enumerate(value.shape) if isinstance(value, torch.Tensor) else ()
    return {axis: _dim(size.node.expr, ranges) for axis, size in sizes if isinstance(size, torch.SymInt)} or None


def _dim(size: Any, ranges: Mapping[Any, Any]) -> Any:
    """A ``Dim`` named as the program's symbol, or ``2 * s + 1`` of one; what is none of these follows from the graph."""
    symbols = list(size.free_symbols)
    if len(symbols) == 1 and size.is_polynomial(symbols[0]):
        symbol = symbols[0]
        factor, rest = size.coeff(symbol, 1), size.coeff(symbol, 0)
        if factor.is_Integer and rest.is_Integer and size == factor * symbol + rest:
            dim = _named(str(symbol), ranges.get(symbol))
            dim = dim if factor == 1 else int(factor) * dim
            return dim if rest == 0 else dim + int(rest)
    return torch.export.Dim.AUTO


def _named(name: str, bounds: Any) -> Any:
    least, most = (None, None) if bounds is None else (bounds.lower, bounds.upper)
    return torch.export.Dim(name, min=_integer(least), max=_integer(most))


def _integer(bound: Any) -> int | None:
    return int(bound) if getattr(bound, "is_Integer", False) else None
