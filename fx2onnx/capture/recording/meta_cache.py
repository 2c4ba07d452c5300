"""Result types of repeated calls, without running the operator again.

The same operator on the same types gives the same type. A call's key is the overload, dtype, sizes, strides and offset
of its tensors, and its other arguments. The first call with a key runs on fake tensors; later ones (the other layers)
only make tensors of the cached types, in later exports too. Where sizes are symbols, an entry holds what the operator
decided by the example's sizes: a later export decides it again, and runs the operator where it comes out differently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch

from fx2onnx.base.memoized import Bounded
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.eager_refusals import check_dtypes, check_sizes, tensors_in
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.sizes.expr import Dim, DimLike, Scalar
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.dispatch import any_autocast, in_function_transform
from fx2onnx.torchcompat.fake_tensors import CPU, FakeMode, fake_like, fake_of_type, fake_view, storage_key
from fx2onnx.torchcompat.fake_tensors import template as new_template
from fx2onnx.torchcompat.operators import OpOverload, mkldnn_is_enabled
from fx2onnx.torchcompat.tensor_questions import is_quantized, requires_grad

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types of real tensors whose fake ones are known without asking torch for them."""

MISSING = object()
"""The call is not known yet."""

IMMEDIATE = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout})
"""Types of arguments that stand for themselves in a key and in a graph."""


class TensorFacts(NamedTuple):
    """The properties of a tensor that decide the types of an operator's results."""

    dtype: torch.dtype
    sizes: tuple[DimLike, ...]
    strides: tuple[DimLike, ...]
    offset: DimLike
    device: torch.device


class PooledType(TensorFacts):
    """Sizes behind the first count channels and windows; eager PyTorch ends the run where there is none."""

    __slots__ = ()


class Spec(NamedTuple):
    """The way in which a result is made: with memory of its own, or as a view of the first argument."""

    type: TensorFacts
    info: TensorInfo
    is_view: bool


class Specs(NamedTuple):
    """The results of a call: one, or several in a container. A number stands for the argument at that position, None for a
    result that was not asked for.
    """

    parts: tuple[Spec | int | None, ...]
    container: Callable[[Iterable[torch.Tensor | None]], object] | None = None


Key: TypeAlias = tuple[Any, torch.dtype, bool | torch.dtype, tuple[object, ...], *tuple[object, ...]]
"""The ``OpTraits`` of the overload, the default dtype, the dtype of autocast, named arguments, and the others."""

Decided: TypeAlias = tuple[tuple[str, Any, object], ...]
"""The decisions by the sizes of the example inputs, as in ``ShapeEnv.asked``."""

Facts: TypeAlias = frozenset[object]
_SHARED: dict[tuple[bool, bool], Bounded[tuple[Facts, Key], tuple[Specs, Decided]]] = {}
"""Calls of PyTorch's own operators, by the settings of torch that strides of results depend on."""


class Before(NamedTuple):
    """The knowledge of a run before an operator ran."""

    facts: Facts
    asked: int
    """The number of questions."""
    taken: tuple[object, ...]
    """The assumptions on data-dependent sizes, and the unknown numbers made for them."""


_MANY = 20_000
"""The largest number of cached calls."""


class MetaCache:
    """Result types of the calls of one run."""

    def __init__(
        self,
        mode: FakeMode,
        env: ShapeEnv,
        fake_of: Callable[[], Callable[[torch.Tensor], torch.Tensor] | None],
        is_above_autograd: bool = True,
    ) -> None:
        self._mode = mode
        self._env = env
        self._weak_fake_of = fake_of
        self._is_above_autograd = is_above_autograd
        self._tracks_gradients = False
        settings = (mkldnn_is_enabled(), torch.are_deterministic_algorithms_enabled())
        self._shared = _SHARED.setdefault(settings, Bounded(_MANY))
        self._specs: dict[Key, Specs] = {}
        self._types: dict[int, TensorFacts] = {}
        self._templates: dict[TensorFacts, torch.Tensor] = {}
        """The tensors from which further tensors of a type with symbolic sizes are made, by type."""
        self.made: dict[int, Spec] = {}
        """The specification of each tensor that was just made here, by its id. The reader removes the entry."""

    def _fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._mode.holds(tensor):
            return tensor
        fake_of = self._weak_fake_of()
        assert fake_of is not None, "the tracer is freed"
        return fake_of(tensor)

    def kept(self) -> tuple[dict[Key, Specs], dict[TensorFacts, torch.Tensor]]:
        """The results that hold for the present knowledge of sizes; from here on copies of them are used."""
        kept = self._specs, self._templates
        self._specs, self._templates = dict(self._specs), dict(self._templates)
        return kept

    def go_back(self, kept: tuple[dict[Key, Specs], dict[TensorFacts, torch.Tensor]]) -> None:
        """Know what ``kept`` gave, and no more."""
        self._specs, self._templates = kept

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor's own type changed (``unsqueeze_``)."""
        self._types.pop(id(tensor), None)

    def key(self, traits: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Key | None:
        """The key of a call, or None where it cannot be cached: tensors made from a type have no gradient, which only
        autograd below would add. Real tensors count as their fake ones, which need not be made for it.
        """
        self._tracks_gradients = self._is_above_autograd and torch.is_grad_enabled()
        part = self._part
        try:
            parts = [(type(arg), arg) if type(arg) in IMMEDIATE else part(arg) for arg in args]
            named = tuple([(name, part(kwargs[name])) for name in sorted(kwargs)]) if kwargs else ()
        except TypeError:
            return None
        autocast = any_autocast() and torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return (traits, torch.get_default_dtype(), autocast, named, *parts)

    def _part(self, arg: Any) -> object:
        kind = type(arg)
        if kind in IMMEDIATE:
            return (kind, arg)
        if isinstance(arg, torch.Tensor):
            if self._tracks_gradients and self._mode.holds(arg) and requires_grad(arg):
                raise TypeError("no key")
            return self._types.get(id(arg)) or self.type_of(arg)
        if isinstance(arg, list | tuple):
            return tuple([self._part(item) for item in arg])
        arg = unwrap(arg)
        if type(arg) in IMMEDIATE:
            return (type(arg), arg)
        if isinstance(arg, Dim):
            return arg
        raise TypeError("no key")

    def type_of(self, tensor: torch.Tensor) -> TensorFacts:
        """Raises TypeError for a tensor that a type does not describe."""
        known = self._types.get(id(tensor))
        if known is None:
            if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
                raise TypeError("no key")
            if type(tensor) in PLAIN and not self._mode.holds(tensor) and not is_quantized(tensor):
                device = CPU if tensor.is_meta else tensor.device
                known = TensorFacts(tensor.dtype, tuple(tensor.shape), tensor.stride(), 0, device)
            else:
                fake = self._fake_of(tensor)
                known = TensorFacts(
                    fake.dtype,
                    tuple(map(unwrap, fake.shape)),
                    tuple(map(unwrap, fake.stride())),
                    unwrap(fake.storage_offset()),
                    self._mode.device_of(fake),
                )
            self._types[id(tensor)] = known
        return known

    def before(self, key: Key | None) -> Before:
        """The present knowledge, before an operator runs."""
        self._env.leans = False
        return Before(_NO_FACTS if key is None else self._facts_about(key), len(self._env.asked), self._taken())

    def _facts_about(self, key: Key) -> Facts:
        """Everything that is known of the sizes in a call."""
        return self._env.facts.about(_symbols(key)) if self._env.hints else _NO_FACTS

    def _taken(self) -> tuple[object, ...]:
        env = self._env
        return (len(env.assertions), *env.unchecked, dict(env.hints), env.facts.signed) if env.unbacked else ()

    def remember(self, key: Key, args: tuple[object, ...], result: object, before: Before) -> None:
        """Note the result of a call that ran. An earlier export's, or another path's, is one that stands for itself: what it decided
        by the example's sizes is decided again, and nothing else was learnt of it.
        """
        results = result if isinstance(result, tuple | list) else (result,)
        parts = [self._spec(item, args) if isinstance(item, torch.Tensor) else None for item in results]
        is_asked_for = [item is not None or results is not result for item in results]
        if any(is_asked and part is None for is_asked, part in zip(is_asked_for, parts, strict=True)):
            return
        specs = self._specs[key] = Specs(tuple(parts), type(result) if results is result else None)
        asked = tuple(dict.fromkeys(self._env.asked[before.asked :]))
        stands_alone = not self._env.leans and before.taken == self._taken()
        is_shared = key[0].func.namespace in ("aten", "fx2onnx") and stands_alone
        if is_shared and all(how != "specialize" for how, _, _ in asked):
            self._shared[before.facts, key] = (specs, asked)

    def _from_before(self, key: Key, _: object = ()) -> Specs | None:
        """The results that an earlier export, or another path, cached, where the present sizes decide alike."""
        env = self._env
        found = self._shared.get((self._facts_about(key), key))
        if found is None:
            return None
        specs, asked = found
        if asked and any(env.hint(what) != answer for _, what, answer in asked):
            return None
        for how, what, _ in asked:
            if env.unbacked and isinstance(what, Relation) and what.symbols() & env.unbacked:
                continue  # made-up sizes decided it
            if how == "guard":
                env.guard(what)
            elif how == "check":
                env.check(what)
        self._specs[key] = specs
        return specs

    def _spec(self, result: torch.Tensor, args: tuple[object, ...]) -> Spec | int | None:
        """None where the result cannot be made from its type."""
        for index, arg in enumerate(args):
            if result is arg:
                return index
        try:
            kind = self.type_of(result)
        except TypeError:
            return None
        memory = storage_key(result)
        sharing = [tensor for tensor in tensors_in(args) if storage_key(tensor) == memory]
        if not sharing:
            return _fresh(kind) if kind.offset == 0 else None
        is_view_of_first = sharing[0] is args[0] and sharing[0].dtype == result.dtype
        return Spec(kind, TensorInfo(kind.dtype, kind.sizes), True) if is_view_of_first else None

    def again(self, key: Key, args: tuple[Any, ...]) -> object:
        """The result of a known call, as new tensors, or MISSING."""
        specs = self._specs.get(key)
        if specs is None:
            first, then = (self._by_rule, self._from_before) if self._env.hints else (self._from_before, self._by_rule)
            specs = first(key, args) or then(key, args)
            if specs is None:
                return MISSING
        if specs.container is None:
            return self._make(specs.parts[0], args)
        return specs.container([self._make(spec, args) for spec in specs.parts])

    def _by_rule(self, key: Key, args: tuple[object, ...]) -> Specs | None:
        """The result type by formula: running the operator takes longer, much longer where sizes are symbolic."""
        rule = None if key[3] else key[0].result_type
        kind = rule(*key[4:]) if rule is not None else None
        is_pooled = isinstance(kind, PooledType)
        if kind is None or (is_pooled and any(type(size) is int and size < 1 for size in kind.sizes[1:])):
            return None  # of nothing, the kernel says so
        if is_pooled:
            self._env.check_some((*cast(TensorFacts, key[4:][0]).sizes[1:], *kind.sizes[1:]))
            self.once(key, lambda: check_sizes(self._env, key[0].func, args, {}, (), kind.sizes))
        check_operands(self._env, key[0].func, args, {})
        specs = self._specs[key] = Specs((_fresh(self._as_written(kind)),))
        if not self._env.hints and not in_function_transform():  # in which less is checked
            self._shared[_NO_FACTS, key] = (specs, ())
        return specs

    def once(self, key: Key | None, check: Callable[[], None]) -> None:
        """Check a call, unless one of its types passed at these sizes before in this process."""
        hints = self._env.hints
        own = [(name, hints.get(name)) for name in sorted(_symbols(key))] if hints else ()
        call = key and (in_function_transform(), key, *own)
        if call is None or call not in _TAKEN:
            check()
            if call is not None:
                _TAKEN[call] = None

    def _as_written(self, kind: TensorFacts) -> TensorFacts:
        """A contiguous type with its sizes as they are written for those that the program is for."""
        if not self._env.facts.sets:
            return kind
        sizes = [self._env.facts.simplified(size) if isinstance(size, Dim) else size for size in kind.sizes]
        dims, strides = (cast("tuple[DimLike, ...]", tuple(group)) for group in (sizes, contiguous_strides(sizes)))
        return kind._replace(sizes=dims, strides=strides)

    def _make(self, spec: Spec | int | None, args: tuple[Any, ...]) -> torch.Tensor | None:
        if spec is None:
            return None
        if isinstance(spec, int):
            return self._fake_of(args[spec])
        made = self._of_type(spec, args)
        self.made[id(made)] = spec
        return made

    def fresh(self, kind: TensorFacts) -> torch.Tensor:
        """A new tensor of that type, with memory of its own."""
        return self._of_type(_fresh(kind), ())

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor over the memory of ``tensor``, of its type. Raises TypeError where a type does not describe it."""
        kind = self.type_of(tensor)
        return self._of_type(Spec(kind, TensorInfo(kind.dtype, kind.sizes), is_view=True), (tensor,))

    def _of_type(self, spec: Spec, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        kind, _, is_view = spec
        base = self._fake_of(args[0]) if is_view else None
        made = self._of_symbols(kind, base) if self._env.hints else fake_of_type(self._mode, kind, base)
        self._types[id(made)] = kind
        return made

    def _of_symbols(self, kind: TensorFacts, base: torch.Tensor | None) -> torch.Tensor:
        env = self._env
        template = self._templates.get(kind) if base is None else None
        if template is None:
            sizes, strides = ([sym_int(env, size) for size in group] for group in (kind.sizes, kind.strides))
            env.takes_notes = False
            try:
                if base is not None:
                    return fake_view(self._mode, base, sizes, strides, sym_int(env, kind.offset))
                self._templates[kind] = template = new_template(sizes, strides, kind.dtype)
            finally:
                env.takes_notes = True
        return fake_like(self._mode, template, kind.device)


def contiguous_strides(sizes: Sequence[Scalar]) -> tuple[Scalar, ...]:
    return _contiguous_strides(tuple(sizes))


@functools.lru_cache(1 << 12)
def _contiguous_strides(sizes: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    strides: list[Scalar] = []
    step: Scalar = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


_NO_FACTS: Facts = frozenset()
_NO_SYMBOLS: frozenset[str] = frozenset()


def _symbols(part: object) -> frozenset[str]:
    """The symbols in a key."""
    if isinstance(part, Dim):
        return part.symbols()
    if not isinstance(part, tuple):
        return _NO_SYMBOLS
    found = [names for each in part if isinstance(each, Dim | tuple) and (names := _symbols(each))]
    return found[0] if len(found) == 1 else _NO_SYMBOLS.union(*found)


def _fresh(kind: TensorFacts) -> Spec:
    return Spec(kind, TensorInfo(kind.dtype, kind.sizes), is_view=False)


_TAKEN: Bounded[tuple[object, ...], None] = Bounded(20_000)
"""Calls that eager PyTorch takes, or of which small tensors say nothing."""


def check_operands(env: ShapeEnv, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Raises what eager PyTorch does, where it refuses the dtypes of the operands: asked once a process, unless sizes decide."""
    key = (func, _dtypes(args), _dtypes(tuple(kwargs.items())) if kwargs else ())
    if key not in _TAKEN and check_dtypes(env, func, args, kwargs):
        _TAKEN[key] = None


def _dtypes(arg: object) -> object:
    """The properties of arguments by which eager PyTorch refuses dtypes: dtypes and ranks of tensors, and kinds of
    numbers.
    """
    if isinstance(arg, torch.Tensor):
        return (arg.dtype, arg.dim())
    if isinstance(arg, list | tuple):
        return tuple([_dtypes(item) for item in arg])
    if arg is None or isinstance(arg, bool | str | torch.dtype):
        return arg
    return type(arg)
