"""Nested arguments and results: torch's pytrees, and dataclasses that nobody registered with them.

Dataclasses and named tuples are built again as copies, without a call of their constructors: these may compute, count or
refuse.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["Key", "Rebuild", "TreeLeaf", "flatten", "pytree", "registered_meanwhile"]

Key = str | int
_REGISTER_FOR_EXPORT = ("torch", "transformers")
"""Packages that register classes so that torch.export builds them from its own tensors."""
_MADE_IN_PYTHON = 1 << 9
"""The flag (``Py_TPFLAGS_HEAPTYPE``) of classes that Python code defines."""


@dataclass(frozen=True, slots=True)
class TreeLeaf:
    """A value that holds no others, and the keys that lead to it."""

    keys: tuple[Key, ...]
    value: Any

    def path(self) -> str:
        """The path of the leaf, such as ``[0]['ids']``."""
        return "".join(f"[{key!r}]" for key in self.keys)


Rebuild = Callable[[Sequence[object]], Any]
"""A structure from its leaves, or from its children."""


def flatten(tree: object, is_leaf: Callable[[object], bool] | None = None) -> tuple[list[TreeLeaf], Rebuild]:
    """The leaves of ``tree`` in order, and a function that builds the same structure from as many new leaves. Structures of which
    ``is_leaf`` is true are leaves, too.
    """
    leaves: list[TreeLeaf] = []
    parts: list[tuple[Rebuild | None, int]] = []  # outer ones first: what builds it (None: a leaf), how many children
    pending: list[tuple[tuple[Key, ...], object]] = [((), tree)]
    while pending:
        keys, part = pending.pop()
        taken_apart = None if is_leaf is not None and is_leaf(part) else _children(part)
        if taken_apart is None:
            leaves.append(TreeLeaf(keys, part))
            parts.append((None, 0))
            continue
        names, children, build = taken_apart
        parts.append((build, len(children)))
        pending += [((*keys, name), child) for name, child in zip(reversed(names), reversed(children), strict=True)]

    def rebuild(values: Sequence[object]) -> object:
        remaining, made = list(values), list[object]()
        for build, count in reversed(parts):  # the first child of each was made last
            if build is None:
                made.append(remaining.pop())
            else:
                inner = [made.pop() for _ in range(count)]
                made.append(build(inner))
        return made.pop()

    return leaves, rebuild


@contextlib.contextmanager
def registered_meanwhile() -> Iterator[None]:
    """A block behind which the classes that it registers as structures are leaves again, as the user had them.

    Classes of modules that it imports stay: transformers registers its outputs where their classes are made, which is once.
    """
    before, modules = set(pytree.SUPPORTED_NODES), set(sys.modules)
    try:
        yield
    finally:
        for kind in set(pytree.SUPPORTED_NODES) - before:
            if getattr(kind, "__module__", "") in modules:
                pytree._deregister_pytree_node(kind)


def is_object(value: object) -> bool:
    """Return whether ``value`` is of a dataclass that nobody registered, or is built otherwise (``is_built_otherwise``)."""
    return is_dataclass(value) or is_built_otherwise(value)


def is_structure(value: object) -> bool:
    """Return whether ``value`` is of a dataclass, or of a class that is registered."""
    return is_dataclass(value) or pytree._get_node_type(value) in pytree.SUPPORTED_NODES


def is_dataclass(value: object) -> bool:
    """Return whether ``value`` is of a dataclass that nobody registered."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return pytree._get_node_type(value) not in pytree.SUPPORTED_NODES


def is_built_otherwise(value: object) -> bool:
    """Return whether ``value`` is of a class that the user registered, and its function that builds one asks something of the
    tensors, fails, or gives other contents.
    """
    kind = pytree._get_node_type(value)
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is None or kind in pytree.BUILTIN_TYPES or kind.__module__.partition(".")[0] in _REGISTER_FOR_EXPORT:
        return False
    inside, context = registered.flatten_fn(value)
    try:
        with _Questions() as questions:
            made = registered.unflatten_fn(list(inside), context)
        return questions.are_asked or not _is_alike(value, made)
    except Exception:  # the user's code
        return True


class _Questions(TorchFunctionMode):
    """Notes whether a function, method or attribute of tensors is used inside."""

    are_asked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.are_asked = True
        return func(*args, **(kwargs or {}))


def _is_alike(one: Any, other: Any) -> bool:
    """Return whether two objects are of one class and hold equal things, and the same tensors."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    own, others = _contents(one), _contents(other)
    if not own and not others:
        return bool(one == other)
    return own.keys() == others.keys() and all(_is_alike(own[key], others[key]) for key in own)


def _contents(value: Any) -> dict[object, Any]:
    """Attributes, slots and elements by name, key and position."""
    found: dict[object, Any] = {("attribute", name): part for name, part in _attributes(value).items()}
    if isinstance(value, dict):
        return found | {("key", key): part for key, part in value.items()}
    return found | dict(enumerate(value)) if isinstance(value, tuple | list) else found


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for name in slots_of(type(value)) if hasattr(value, name)]
    return dict(getattr(value, "__dict__", None) or {}) | {name: getattr(value, name) for name in slots}


def slots_of(kind: type) -> list[str]:
    """The names of slots as the classes declare them, those of bases first; Python itself has them sorted."""
    found: list[str] = []
    for base in reversed(kind.__mro__):
        stated = vars(base).get("__slots__", ())
        order = [stated] if isinstance(stated, str) else [*stated]
        members = [name for name, member in vars(base).items() if isinstance(member, types.MemberDescriptorType)]
        found += sorted(members, key=lambda name: order.index(name) if name in order else len(order))
    return found


def _children(tree: object) -> tuple[list[Key], list[object], Rebuild] | None:
    """The keys and values directly inside, and what builds the structure from others; None for a leaf."""
    kind = pytree._get_node_type(tree)
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is not None and kind is not collections.namedtuple:
        inside, context = registered.flatten_fn(tree)
        children = list(inside)
        names = _names(registered, tree, len(children))
        return names, children, lambda values: registered.unflatten_fn(values, context)
    if registered is None and not is_dataclass(tree):
        return None
    elements = dict(zip(tree._fields, tree, strict=True)) if isinstance(tree, tuple) else {}  # type: ignore[attr-defined]
    named, attributes = {}, _attributes(tree)
    if registered is None:
        named = {each.name: getattr(tree, each.name) for each in dataclasses.fields(tree) if hasattr(tree, each.name)}  # type: ignore[arg-type]
    named |= {name: value for name, value in attributes.items() if name not in named and _has_tensors(value)}
    copied = _Copied(
        type(tree), [*elements], [*named], {name: attributes[name] for name in attributes if name not in named}
    )
    if isinstance(tree, dict):
        copied.items.update({key: None if key in named else value for key, value in tree.items()})
    return [*elements, *named], [*elements.values(), *named.values()], copied


def _has_tensors(value: object) -> bool:
    return any(isinstance(leaf.value, torch.Tensor) for leaf in flatten(value)[0])


@dataclass(frozen=True, slots=True)
class _Copied:
    """A ``Rebuild`` of copies with other elements and attributes, which no constructor and no ``__setattr__`` sees. It holds nothing of
    the original that is replaced.
    """

    kind: type
    elements: list[str]
    """The names of the elements of a named tuple, which are the first of the values; ``named`` attributes follow."""
    named: list[str]
    others: dict[str, object]
    """Attributes that stay as they are."""
    items: dict[object, object] = field(default_factory=dict)
    """The items of a dict by key; what an attribute of that name holds, too, is replaced."""

    def __call__(self, values: Sequence[object]) -> Any:
        count = len(self.elements)
        named = dict(zip(self.named, values[count:], strict=True))
        base: Any = next(each for each in self.kind.__mro__ if not each.__flags__ & _MADE_IN_PYTHON)
        made = base.__new__(self.kind, values[:count]) if self.elements else base.__new__(self.kind)
        slots = slots_of(self.kind)
        for name, value in (self.others | named).items():
            if name in slots or not hasattr(made, "__dict__"):
                object.__setattr__(made, name, value)
            else:
                made.__dict__[name] = value
        if self.items:
            base.update(made, {key: named.get(str(key), value) for key, value in self.items.items()})
        return made


def _names(registered: pytree.NodeDef, tree: object, count: int) -> list[Key]:
    """The key of each child: dictionary key, field name or position."""
    with_keys = registered.flatten_with_keys_fn
    if with_keys is None:
        return list(range(count))
    try:
        pairs, _ = with_keys(tree)
    except NotImplementedError:
        return list(range(count))
    return [_key(entry) for entry, _ in pairs]


def _key(entry: pytree.KeyEntry) -> Key:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            found: Key = getattr(entry, attribute)
            return found
    return str(entry)
