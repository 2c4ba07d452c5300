"""``torch.fx.experimental.dynamic_spec`` of torch 2.14, or the same attributes where torch has no such module."""

from __future__ import annotations

import itertools
from typing import Any

import torch

try:
    from torch.fx.experimental.dynamic_spec import (  # type: ignore[import-not-found,unused-ignore]
        DictSpec,
        IntVar,
        ObjectSpec,
        ParamsSpec,
        SeqSpec,
        ShapesSpec,
        ShapeVar,
        TensorSpec,
        dynamic_spec,
    )
except ImportError:
    import sympy
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    _ENV = ShapeEnv()
    _NUMBERS = itertools.count()

    class IntVar(torch.SymInt):  # type: ignore[no-redef]
        def __init__(self, name: str | None = None, *, min: int | None = None, max: int | None = None) -> None:
            symbol = sympy.Symbol(f"{name or 'anon'}#{next(_NUMBERS)}")
            _ENV.var_to_range[symbol] = ValueRanges(-int_oo if min is None else min, int_oo if max is None else max)
            super().__init__(SymNode(symbol, _ENV, int, hint=None))

        def __hash__(self) -> int:
            return id(self)

    class ShapeVar(IntVar):  # type: ignore[no-redef]
        def __init__(self, name: str | None = None, *, min: int = 0, max: int | None = None) -> None:
            super().__init__(name, min=min, max=max)

    class TensorSpec:  # type: ignore[no-redef]
        def __init__(self, dims: Any) -> None:
            self._specs = list(dims)

    class ObjectSpec:  # type: ignore[no-redef]
        def __init__(self, fields: Any = None) -> None:
            self._fields = dict(fields or {})

    class DictSpec:  # type: ignore[no-redef]
        def __init__(self, entries: Any = None) -> None:
            self._entries = dict(entries or {})

    class SeqSpec:  # type: ignore[no-redef]
        def __init__(self, entries: Any) -> None:
            self._entries = list(entries)

    class ParamsSpec:  # type: ignore[no-redef]
        def __init__(self, params: dict[str, Any] | None = None) -> None:
            named = dict(params or {})
            self._varargs, self._varkw = named.pop("*args", None), named.pop("**kwargs", None)
            self._named_args = named

    class ShapesSpec:  # type: ignore[no-redef]
        def __init__(self, params: Any = None, *, assumptions: Any = None) -> None:
            self._params = ParamsSpec(params) if isinstance(params, dict) else params
            self._assumptions = list(assumptions or [])

    def dynamic_spec(spec: Any) -> Any:
        def decorated(function: Any) -> Any:
            function._dynamic_spec = spec if isinstance(spec, ShapesSpec) else ShapesSpec(spec)
            return function

        return decorated


STATIC = None

__all__ = [
    "STATIC", "DictSpec", "IntVar", "ObjectSpec", "ParamsSpec", "SeqSpec", "ShapeVar", "ShapesSpec", "TensorSpec",
    "dynamic_spec",
]  # fmt: skip
