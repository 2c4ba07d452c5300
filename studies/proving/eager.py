"""PyTorch's own definitions of operators on symbols: the ATen graph that its decompositions leave, evaluated on terms."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from studies.proving.algebra import Exact, Poly, Unproved
from studies.proving.graphs import Graph, objects

aten = torch.ops.aten
_KEPT = frozenset(
    [aten._softmax.default, aten._log_softmax.default, aten.addmm.default, aten.mean.dim, aten.sigmoid.default, aten.native_layer_norm.default]
)  # fmt: skip
"""Operators that the algebra knows as they are."""
_ELEMENTS = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "erf": "Erf",
    "reciprocal": "Reciprocal", "tanh": "Tanh", "sigmoid": "Sigmoid", "abs": "Abs", "sign": "Sign", "sin": "Sin", "cos": "Cos", "floor": "Floor",
    "maximum": "Max", "minimum": "Min", "relu": "Relu", "pow": "Pow", "where": "Where", "lt": "Less", "gt": "Greater", "le": "LessOrEqual",
    "ge": "GreaterOrEqual", "eq": "Equal", "logical_not": "Not", "logical_and": "And", "logical_or": "Or", "bitwise_not": "Not",
    "bitwise_and": "And", "bitwise_or": "Or", "logical_xor": "Xor",
}  # fmt: skip
_REDUCED = {"sum": "ReduceSum", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}  # fmt: skip
_SAME = frozenset(
    ["convert_element_type", "clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh_copy", "copy"]
)


class Eager(Graph):
    """One evaluation of a function of PyTorch on symbols. ``tensors``: inputs by name; those that hold no floats are constants."""

    def __init__(self, function: Callable[..., Any], tensors: Mapping[str, torch.Tensor], algebra: Any) -> None:
        self.algebra = algebra
        table = {key: each for key, each in decomposition_table.items() if key not in _KEPT}
        try:
            traced = make_fx(function, decomposition_table=table)(*tensors.values())
        except Exception as error:  # decompositions raise errors of many classes
            raise Unproved("PyTorch's decomposition") from error
        self.held: dict[Any, Any] = {}
        names = iter(tensors)
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                self.held[node] = symbols(next(names), tensors, algebra)
            elif node.op == "get_attr":
                self.held[node] = getattr(traced, node.target).detach().numpy()
            elif node.op == "call_function":
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.held.__getitem__)  # type: ignore[arg-type]
                self.held[node] = self._call(node, args, kwargs)
            elif node.op == "output":
                (found,) = torch.fx.map_arg(node.args, self.held.__getitem__)  # type: ignore[arg-type]
                self.outputs = [self.lifted(np.asarray(each)) for each in found]

    def _call(self, node: Any, args: Any, kwargs: Any) -> Any:
        if node.target is python_operator.getitem:
            return args[0][args[1]]
        name = node.target._schema.name.partition("::")[2]
        args = [np.asarray(each) if isinstance(each, Poly) else each for each in args]
        arrays = [each for each in _leaves((args, kwargs)) if isinstance(each, np.ndarray)]
        if not any(each.dtype == object for each in arrays):
            made = node.target(*_as_tensors(args), **_as_tensors(kwargs))
            return tuple(each.numpy() for each in made) if isinstance(made, tuple | list) else made.numpy()
        if name in _SAME:
            return args[0]
        if name in _ELEMENTS:
            return self._element(_ELEMENTS[name], args, kwargs)
        if name == "rsqrt":
            return self._element("Reciprocal", [self._element("Sqrt", args, {})], {})
        if name == "log1p" and not isinstance(self.algebra, Exact):
            return self._element("Log", [self._element("Add", [args[0], 1.0], {})], {})
        if name in ("clamp", "clamp_min", "clamp_max"):
            low, high = {
                "clamp": (*args[1:], None, None)[:2],
                "clamp_min": (args[1], None),
                "clamp_max": (None, args[1]),
            }[name]
            ends = [np.float32(-np.inf if low is None else low), np.float32(np.inf if high is None else high)]
            return self.by_element("Clip", (), [args[0], *map(np.asarray, ends)])
        if name in _REDUCED and not isinstance(node.meta["val"], tuple):
            return self._reduced(_REDUCED[name], *args, **kwargs)
        if name in ("var", "std"):
            return self._spread(name, *args, **kwargs)
        if name in ("_softmax", "_log_softmax"):
            return self.rows(
                "Softmax" if name == "_softmax" else "LogSoftmax", (), args[:1], [args[1] % args[0].ndim], None
            )
        if name == "native_layer_norm":
            x, axes = args[0], range(args[0].ndim - len(args[1]), args[0].ndim)
            scale = [
                np.ones(x.shape, np.float32) if args[2] is None else args[2],
                *([] if args[3] is None else [args[3]]),
            ]
            return [
                self.rows("LayerNormalization", (("epsilon", args[4]),), [x, *map(self.lifted, scale)], axes, None),
                None,
                None,
            ]
        if name in ("mm", "bmm", "mv", "dot"):
            return self._product(*args)
        if name == "addmm":
            scaled = [
                self._element("Mul", [each, kwargs.get(key, 1)], {})
                for key, each in (("beta", args[0]), ("alpha", self._product(*args[1:])))
            ]
            return self.add(*scaled)
        return self._moved_by_eager(node, args, kwargs)

    def _element(self, op: str, args: Any, kwargs: Any) -> Any:
        given = [each if isinstance(each, np.ndarray) else np.asarray(each) for each in args]
        if kwargs.get("alpha", 1) != 1:
            given[1] = self.by_element("Mul", (), [given[1], np.asarray(kwargs["alpha"])])
        if kwargs.get("rounding_mode"):
            raise Unproved("a rounded division")
        return self.by_element(op, (), given)

    def _reduced(self, op: str, x: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> Any:
        axes = [dims] if isinstance(dims, int) else dims or range(x.ndim)
        return self.rows(op, (), [x], sorted(axis % max(x.ndim, 1) for axis in axes), keepdim) if x.ndim else x

    def _spread(self, name: str, x: Any, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        mean = self._reduced("ReduceMean", x, dims, True)
        centred = self._element("Sub", [x, mean], {})
        total = self._reduced("ReduceSum", self._element("Mul", [centred, centred], {}), dims, keepdim)
        count = x.size // max(mean.size, 1)
        found = self._element("Div", [total, count - (1 if correction is None else correction)], {})
        return self._element("Sqrt", [found], {}) if name == "std" else found

    def _product(self, a: Any, b: Any) -> Any:
        vectors = a.ndim == 1, b.ndim == 1
        found = self.product(a[None] if vectors[0] else a, b[:, None] if vectors[1] else b)
        return found[(..., *(0 for each in vectors if each))] if any(vectors) else found

    def _moved_by_eager(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The elements at the places that the operator gives for two sets of numbers of places; Unproved where it computes."""
        pool = [
            term
            for each in _leaves((args, kwargs))
            if isinstance(each, np.ndarray) and each.dtype == object
            for term in each.reshape(-1)
        ]
        found = []
        for scale, shift in ((1.0, 1.0), (-3.0, -7.5)):
            start = 0

            def placed(each: Any, scale: float = scale, shift: float = shift) -> Any:
                nonlocal start
                if not isinstance(each, np.ndarray):
                    return each
                if each.dtype != object:
                    return torch.from_numpy(np.array(each))
                start += each.size
                return torch.arange(start - each.size, start, dtype=torch.float64).reshape(each.shape) * scale + shift

            try:
                made = node.target(*_mapped(args, placed), **_mapped(kwargs, placed))
            except Exception as error:  # PyTorch's kernels raise errors of many classes
                raise Unproved(str(node.target)) from error
            several = made if isinstance(made, tuple | list) else [made]
            found.append([each.numpy() for each in several])
        results = []
        for one, other in zip(*found, strict=True):
            flat = []
            for a, b in zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True):
                place = a - 1
                if a == b:
                    flat.append(self.algebra.constant(np.float32(a)))
                elif place == int(place) and 0 <= place < len(pool) and b == place * -3.0 - 7.5:
                    flat.append(pool[int(place)])
                else:
                    raise Unproved(str(node.target))
            results.append(objects(flat, one.shape))
        return results if isinstance(made, tuple | list) else results[0]


def symbols(name: str, tensors: Mapping[str, torch.Tensor], algebra: Any) -> Any:
    """An input as symbols, or its numbers where it holds no floats."""
    tensor = tensors[name]
    if not tensor.is_floating_point():
        return tensor.numpy()
    flat = [algebra.symbol(name, place, str(tensor.dtype).removeprefix("torch.")) for place in range(tensor.numel())]
    return objects(flat, tuple(tensor.shape))


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    return torch.utils._pytree.tree_map(change, tree)


def _as_tensors(tree: Any) -> Any:
    return _mapped(tree, lambda each: torch.from_numpy(np.array(each)) if isinstance(each, np.ndarray) else each)
