"""The same operator on the same types gives the same type again: results of repeated calls without running them.

A call's key is the overload, dtype, sizes, strides and offset of its tensors, and its other arguments. The first call
of a kind runs on fake tensors; later ones (the other layers) only make tensors of the remembered types. What was learnt
serves later exports too. Where sizes are symbols, the questions are remembered that were answered from the sample's
sizes: a later export asks them again, and runs the operator where an answer differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from fx2onnx.base.bounded import Bounded
from fx2onnx.base.dims import Dim
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.capture.torch_private.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    fake_from_meta,
    fake_view,
    storage_key,
)
from fx2onnx.capture.torch_private.flags import mkldnn_is_enabled

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of real tensors whose fake ones are known without asking torch for them."""
_CPU = torch.device("cpu")

MISSING: Any = object()
"""The call is not known yet."""

Specs: TypeAlias = tuple[Any, ...]
Questions: TypeAlias = tuple[tuple[str, Any, Any], ...]

_SHARED: dict[tuple[bool, bool], Bounded[Any, tuple[Specs, Questions]]] = {}
"""Calls of PyTorch's own operators, by the settings of torch that strides of results depend on."""

_MANY = 20_000
"""So many kinds of calls are remembered at most."""

IMMEDIATE = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout})
"""Types of arguments that stand for themselves in a key and in a graph."""


class Replay:
    """What is known of the calls of one run."""

    def __init__(
        self,
        mode: FakeTensorMode,
        env: ShapeEnv,
        to_fake: Callable[[], Callable[[torch.Tensor], torch.Tensor] | None],
    ) -> None:
        self._mode = mode
        self._env = env
        self._weak_to_fake = to_fake
        settings = (mkldnn_is_enabled(), torch.are_deterministic_algorithms_enabled())
        self._shared = _SHARED.setdefault(settings, Bounded(_MANY))
        self._known: dict[Any, Specs] = {}
        self._types: dict[int, tuple[Any, ...]] = {}
        self.made: dict[int, tuple[TensorInfo, bool]] = {}
        """By the ids of tensors just made here: the type, and whether the tensor has memory of its own. Whoever asks takes it
        away. One for all of a kind."""
        self._made_of: dict[int, tuple[TensorInfo, bool]] = {}

    def _to_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        to_fake = self._weak_to_fake()
        assert to_fake is not None, "who has this is gone"
        return to_fake(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor's own type changed (``unsqueeze_``)."""
        self._types.pop(id(tensor), None)

    def key(self, traits: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The key of a call, or None where it cannot be replayed: results that were made anew have no gradient. Real tensors
        count as their fake ones, which need not be made for it.
        """
        if torch.is_grad_enabled():
            return None
        try:
            parts = [self._part(arg) for arg in args]
            if kwargs:
                parts += [(name, self._part(kwargs[name])) for name in sorted(kwargs)]
        except TypeError:
            return None
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return (traits, torch.get_default_dtype(), autocast, *parts)

    def _part(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is FakeTensor:
            return self._types.get(id(arg)) or self._type(arg)
        if kind in IMMEDIATE:
            return (kind, arg)
        if isinstance(arg, torch.Tensor):
            return self._types.get(id(arg)) or self._type(arg)
        if isinstance(arg, list | tuple):
            return tuple([self._part(item) for item in arg])
        arg = unwrap(arg)
        if type(arg) in IMMEDIATE:
            return (type(arg), arg)
        if isinstance(arg, Dim):
            return arg
        raise TypeError("not replayable")

    def _type(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        found = self._types.get(id(tensor))
        if found is None:
            if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
                raise TypeError("not replayable")
            if type(tensor) in PLAIN and not tensor.is_quantized:
                device = tensor.device if tensor.device.type != "meta" else _CPU
                found = (tensor.dtype, tuple(tensor.shape), tensor.stride(), 0, device)
            else:
                fake = self._to_fake(tensor)
                found = (
                    fake.dtype,
                    tuple(map(unwrap, fake.shape)),
                    tuple(map(unwrap, fake.stride())),
                    unwrap(fake.storage_offset()),
                    fake.device,
                )
            self._types[id(tensor)] = found
        return found

    def remember(self, key: Any, args: tuple[Any, ...], result: Any, asked: Questions = ()) -> None:
        """Note the result of a call that ran, and what it asked of the sample's sizes."""
        if isinstance(result, torch.Tensor):
            specs = (self._spec(result, args),)
        elif isinstance(result, tuple | list) and all(isinstance(item, torch.Tensor) for item in result):
            specs = (type(result), *(self._spec(item, args) for item in result))
        else:
            return
        if None in specs:
            return
        self._known[key] = specs
        if (
            key[0].func.namespace == "aten"
            and not self._env.unbacked
            and all(how != "specialize" for how, _, _ in asked)
        ):
            self._shared[key] = (specs, tuple(dict.fromkeys(asked)))

    def _from_before(self, key: Any) -> Specs | None:
        """What an earlier export learnt, where the sizes give the same answers now."""
        specs, asked = self._shared.get(key, (None, ()))
        if specs is None or self._env.unbacked:
            return None
        env = self._env
        if any(env.hint(what) != answer for _, what, answer in asked):
            return None
        for how, what, _ in asked:
            if how == "guard":
                env.guard(what)
        self._known[key] = specs
        return specs

    def _spec(self, result: torch.Tensor, args: tuple[Any, ...]) -> Any:
        for index, arg in enumerate(args):
            if result is arg:
                return ("same", index)
        try:
            kind = self._type(result)
        except TypeError:
            return None
        memory = storage_key(result)
        tensors = [(i, t) for i, arg in enumerate(args) for t in _tensors(arg)]
        sharing = [(index, tensor) for index, tensor in tensors if storage_key(tensor) == memory]
        if not sharing:
            return ("new", kind) if kind[3] == 0 else None
        index, base = sharing[0]
        return ("view", kind) if index == 0 and base is args[0] and base.dtype == result.dtype else None

    def again(self, key: Any, args: tuple[Any, ...]) -> Any:
        """The result of a known call, as new tensors, or MISSING."""
        specs = self._known.get(key) or self._by_rule(key) or self._from_before(key)
        if specs is None:
            return MISSING
        if isinstance(specs[0], type):
            return specs[0](self._make(spec, args) for spec in specs[1:])
        return self._make(specs[0], args)

    def _by_rule(self, key: Any) -> Specs | None:
        """The result type by formula, where sizes are symbolic and running would be slow."""
        rule = key[0].result_type if self._env.hints else None
        kind = rule(key[3:]) if rule is not None and all(_is_positional(part) for part in key[3:]) else None
        if kind is None:
            return None
        self._known[key] = (("new", kind),)
        return self._known[key]

    def _make(self, spec: Any, args: tuple[Any, ...]) -> torch.Tensor:
        if spec[0] == "same":
            return self._to_fake(args[spec[1]])
        dtype, sizes, strides, offset, device = spec[1]
        env = self._env
        if env.hints:
            sizes, strides = [sym_int(env, size) for size in sizes], [sym_int(env, stride) for stride in strides]
            offset = sym_int(env, offset)
        env.takes_notes = False
        try:
            if spec[0] == "view":
                made = fake_view(self._mode, self._to_fake(args[0]), sizes, strides, offset)
            else:
                made = fake_from_meta(self._mode, sizes, dtype, device, strides)
        finally:
            env.takes_notes = True
        self._types[id(made)] = spec[1]
        known = self._made_of.get(id(spec))
        if known is None:
            known = self._made_of[id(spec)] = (TensorInfo(dtype, spec[1][1]), spec[0] == "new")
        self.made[id(made)] = known
        return made


def _is_positional(part: Any) -> bool:
    """Keyword arguments are (name, part) pairs; no rule reads them."""
    return not (isinstance(part, tuple) and part and isinstance(part[0], str))


def _tensors(arg: Any) -> list[torch.Tensor]:
    if isinstance(arg, torch.Tensor):
        return [arg]
    return [tensor for item in arg for tensor in _tensors(item)] if isinstance(arg, list | tuple) else []
