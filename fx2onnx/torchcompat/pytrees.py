"""Nested arguments and results: torch's pytrees, and dataclasses that nobody registered with them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

__all__ = ["Key", "Leaf", "Rebuild", "flatten", "pytree", "registered_meanwhile"]

Key = str | int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that holds no others, and the keys that lead to it."""

    keys: tuple[Key, ...]
    value: Any

    def path(self) -> str:
        """The path of the leaf, such as ``[0]['ids']``."""
        return "".join(f"[{key!r}]" for key in self.keys)


Rebuild = Callable[[Sequence[object]], Any]
"""A structure from its leaves, or from its children."""


def flatten(tree: object, *, keeps_dataclasses: bool = False) -> tuple[list[Leaf], Rebuild]:
    """The leaves of ``tree`` in order, and a function that builds the same structure from as many new leaves. Plain dataclasses
    are leaves where that is asked for.
    """
    leaves: list[Leaf] = []
    parts: list[tuple[Rebuild | None, int]] = []  # outer ones first: what builds it (None: a leaf), how many children
    pending: list[tuple[tuple[Key, ...], object]] = [((), tree)]
    while pending:
        keys, part = pending.pop()
        taken_apart = None if keeps_dataclasses and is_plain_dataclass(part) else _children(part)
        if taken_apart is None:
            leaves.append(Leaf(keys, part))
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


def is_plain_dataclass(value: object) -> bool:
    """Return whether ``value`` is of a dataclass that computes no field from others, and that nobody registered."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or hasattr(value, "__post_init__"):
        return False
    is_registered = pytree._get_node_type(value) in pytree.SUPPORTED_NODES
    return not is_registered and all(field.init for field in dataclasses.fields(value))


def _children(tree: object) -> tuple[list[Key], list[object], Rebuild] | None:
    """The keys and values directly inside, and what builds the structure from others; None for a leaf."""
    kind = pytree._get_node_type(tree)
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is not None:
        inside, context = registered.flatten_fn(tree)
        children = list(inside)
        names = _names(registered, tree, len(children))
        return names, children, lambda values: registered.unflatten_fn(values, context)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree) if field.init and hasattr(tree, field.name)]
        children, own = [getattr(tree, name) for name in fields], type(tree)
        return [*fields], children, lambda values: own(**dict(zip(fields, values, strict=True)))
    return None


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
