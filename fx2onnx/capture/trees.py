"""Nested arguments and results: torch's pytrees, and dataclasses that nobody registered with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fx2onnx.capture.torch_private import pytree

Key = str | int


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that holds no others, and the keys that lead to it."""

    keys: tuple[Key, ...]
    value: Any

    def path(self) -> str:
        """Such as ``[0]['ids']``."""
        return "".join(f"[{key!r}]" for key in self.keys)


Rebuild = Callable[[list[Any]], Any]


def flatten(tree: Any) -> tuple[list[Leaf], Rebuild]:
    """The leaves of ``tree`` in order, and a function that builds the same structure from as many new leaves."""
    leaves: list[Leaf] = []
    build = _flatten(tree, (), leaves)

    def rebuild(values: list[Any]) -> Any:
        return build(iter(values))

    return leaves, rebuild


def _flatten(tree: Any, keys: tuple[Key, ...], leaves: list[Leaf]) -> Callable[[Any], Any]:
    kind = pytree._get_node_type(tree)
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is not None:
        children, context = registered.flatten_fn(tree)
        children = list(children)
        names = _names(registered, tree, len(children))
        builders = [_flatten(child, (*keys, name), leaves) for child, name in zip(children, names, strict=True)]
        return lambda values: registered.unflatten_fn([build(values) for build in builders], context)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree) if field.init and hasattr(tree, field.name)]
        builders = [_flatten(getattr(tree, name), (*keys, name), leaves) for name in fields]
        return lambda values: dataclasses.replace(
            tree, **{name: build(values) for name, build in zip(fields, builders, strict=True)}
        )
    leaves.append(Leaf(keys, tree))
    return next


def _names(registered: Any, tree: Any, count: int) -> list[Key]:
    """The key of each child: dictionary key, field name or position."""
    with_keys = getattr(registered, "flatten_with_keys_fn", None)
    if with_keys is None:
        return list(range(count))
    try:
        pairs, _ = with_keys(tree)
    except NotImplementedError:
        return list(range(count))
    return [_key(entry) for entry, _ in pairs]


def _key(entry: Any) -> Key:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            found: Key = getattr(entry, attribute)
            return found
    return str(entry)
