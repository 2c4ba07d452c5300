"""The table of kernels: one entry per operator and version range, filled by ``@kernel`` in ``kernels/``.

A kernel is one of three kinds. ``into`` writes all of the given ``out`` arrays, which hold garbage; ``view`` returns
arrays that may share memory with its inputs; ``alloc`` returns fresh arrays.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fx2onnx.base import plugins
from fx2onnx.base.source import place_of
from fx2onnx.base.stack_frames import public
from fx2onnx.semantics.types import Array, Spec

Function = TypeVar("Function", bound=Callable[..., Any])
Infer = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Spec]]
"""A function of the inputs and the attributes that gives (shape, dtype) of each output."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The computation of one operator, and what the planner may do with its buffers."""

    op_type: str
    domain: str
    since: int
    fn: Callable[..., Any]
    kind: str = "alloc"
    infer: Infer | None = None
    inplace: tuple[int, ...] = ()
    """``out[0]`` may be exactly input p for each p here."""
    shape_inputs: tuple[int, ...] | None = ()
    """Inputs whose *values* decide the output's shape. None: any value may, so nothing is planned ahead."""
    is_random: bool = False
    elementwise: bool = False
    """Takes operands of any strides and writes its output in any strides."""
    prepare: Callable[..., Any] | None = None
    """Given constant inputs and the shapes, returns a faster callable with the same contract, or None."""
    extras: frozenset[str] = field(default_factory=frozenset)
    """The keywords among ``kept``, a dictionary of the step for what it makes of its attributes once, ``n_outputs`` and ``version`` that
    the function takes beside the attributes.
    """


class Calls:
    """A kernel, or ``Prepared.fn``, by the NumPy calls that compute it.

    ``bind`` takes what the function takes and returns the calls with their operands. It reads no values: a plan whose memory stays
    where it is binds once, and makes the calls at each run.
    """

    def __init__(self, bind: Callable[..., Sequence[Callable[[], Any]]]) -> None:
        functools.update_wrapper(self, bind)
        self.bind = bind

    def __call__(self, *args: Any, **attrs: Any) -> None:
        run_all(self.bind(*args, **attrs))


def bind(fn: Callable[..., Any], *args: Any, **attrs: Any) -> Sequence[Callable[[], Any]]:
    """The calls that compute ``fn(*args, **attrs)``."""
    return fn.bind(*args, **attrs) if isinstance(fn, Calls) else [functools.partial(fn, *args, **attrs)]


def run_all(calls: Iterable[Callable[[], Any]]) -> None:
    for call in calls:
        call()


PRIVATE_DOMAIN = "fx2onnx"
"""The domain of the runner's own operators, which no model can name."""

_EXTRAS = ("kept", "n_outputs", "version")
_table: dict[tuple[str, str], dict[int, Kernel]] = {}
_later: dict[tuple[str, str], str] = {}
_changes = 0


@public
def kernel(
    op_type: str,
    since: int | Sequence[int] = 1,
    *,
    domain: str = "",
    kind: str = "alloc",
    infer: Infer | None = None,
    inplace: tuple[int, ...] = (),
    shape_inputs: tuple[int, ...] | None = (),
    is_random: bool = False,
    elementwise: bool = False,
    prepare: Callable[..., Any] | None = None,
) -> Callable[[Function], Function]:
    """Register a function as the kernel of ``op_type`` from opset ``since`` on.

    Raises: ValueError for a second kernel of the same operator and version, naming both places.
    """
    if kind not in ("alloc", "into", "view"):
        raise ValueError(f"{op_type}: unknown kind {kind}")
    if (kind == "into") != (infer is not None):
        raise ValueError(f"{op_type}: kernels of kind 'into', and only they, need infer=")
    if prepare is not None and infer is None:
        raise ValueError(f"{op_type}: prepare= is for kernels of kind 'into'")

    contract = (kind, infer, inplace, shape_inputs, is_random, elementwise, prepare)

    def register(fn: Function) -> Function:
        if (domain, op_type) in _later:
            importlib.import_module(_later[domain, op_type])
        names = _parameters(fn.bind if isinstance(fn, Calls) else fn)
        extras = frozenset(name for name in _EXTRAS if name in names)
        for version in (since,) if isinstance(since, int) else since:
            versions = _table.setdefault((domain, op_type), {})
            if version in versions:
                raise ValueError(
                    f"two kernels for {op_type}-{version}: {place_of(versions[version].fn)}, {place_of(fn)}"
                )
            versions[version] = Kernel(op_type, domain, version, fn, *contract, extras)
            _count_change()
        return fn

    return register


def _parameters(fn: Callable[..., Any]) -> Collection[str]:
    """Their names. A plain function's code has them at hand: ``inspect`` takes a tenth of the time of loading all kernels."""
    code = None if hasattr(fn, "__wrapped__") else getattr(fn, "__code__", None)
    if code is None:
        return inspect.signature(fn).parameters
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names


def register_later(domain: str, op_types: Iterable[str], module: str) -> None:
    """Name the module that registers the kernels of these operators; it is imported when one of them is first looked for.

    Raises: ValueError for an operator that another module is named for.
    """
    for op_type in op_types:
        if _later.setdefault((domain, op_type), module) != module:
            raise ValueError(f"two modules for {domain}::{op_type}: {_later[domain, op_type]}, {module}")


def find_kernel(domain: str, op_type: str, version: int) -> Kernel | None:
    """The newest kernel not newer than the schema's ``version``. Other packages are asked where there is none."""
    found = _newest(domain, op_type, version)
    if found is None and (module := _later.get((domain, op_type))):
        importlib.import_module(module)
        found = _newest(domain, op_type, version)
    if found is None and plugins.plugins(plugins.KERNELS):
        plugins.import_all(plugins.KERNELS)
        found = _newest(domain, op_type, version)
    return found


def unknown_kernel(op_type: str, domain: str) -> Kernel:
    """The stand-in for the kernel of an operator in a program that does not run: nothing is known of its results."""
    return Kernel(op_type, domain, 1, lambda *_, **__: None, shape_inputs=None)


def _newest(domain: str, op_type: str, version: int) -> Kernel | None:
    versions = _table.get((domain, op_type), {})
    usable = [since for since in versions if since <= version]
    return versions[max(usable)] if usable else None


def table_version() -> int:
    """A number that grows whenever the table changes, for those who remember what they found in it."""
    return _changes


def _count_change() -> None:
    global _changes
    _changes += 1


def all_kernels() -> list[Kernel]:
    """Every entry, sorted by domain, name, version."""
    for module in set(_later.values()):
        importlib.import_module(module)
    return [versions[v] for _, versions in sorted(_table.items()) for v in sorted(versions)]


def unregister(op_type: str, domain: str) -> None:
    """Remove a custom operator's kernels, for tests and interactive work."""
    _table.pop((domain, op_type), None)
    _count_change()


def outputs_of(result: Any) -> tuple[Any, ...]:
    """A kernel's result as a tuple, one entry per output."""
    return result if isinstance(result, tuple) else (result,)


def same_as_first(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """``infer`` of elementwise operators of one input."""
    return ((inputs[0].shape, inputs[0].dtype),)


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that are known of a step before it runs. ``consts[i]`` is the input's value where it never changes."""

    inputs: Sequence[Spec | None]
    consts: Sequence[Array | None]
    outputs: Sequence[Spec]
    channels_last: Sequence[bool]
    attrs: Mapping[str, Any]
    kept: dict[str, Any] = field(default_factory=dict)
    """The step's, whatever the shapes of its inputs."""
    wants_channels_last: bool = False
    """True if a step that reads the output, or what element-wise steps make of it, works in channels-last memory."""

    def once(self, key: str, sources: Sequence[Any], make: Callable[[], Made]) -> Made:
        """The result of ``make`` for ``sources``, kept by the step until it is asked with others: weights in another order are
        there once, not once for each shape that an image had.
        """
        held = self.kept.get(key)
        if held is None or any(one is not other for one, other in zip(held[0], sources, strict=True)):
            held = self.kept[key] = (tuple(sources), make())
        made: Made = held[1]
        return made


@dataclass(frozen=True, slots=True)
class Prepared:
    """``fn(outs, scratch, *inputs)`` writes all of ``outs``. Scratch lives for one call and holds garbage before it.

    ``channels_last``: the output is to lie in memory as [N, *dims, C], whatever its logical axes.
    """

    fn: Callable[..., None]
    scratch: tuple[Spec, ...] = ()
    channels_last: bool = False
    inplace: tuple[int, ...] | None = None
    """Overrides the kernel's ``inplace`` where given."""
    is_long: bool = False
    """True if the calls are so many that a plan copies larger operands and results, too, rather than bind them at each run."""
