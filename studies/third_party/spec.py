"""The form of a row: a package's model, how its inputs are made at given sizes, and which of these are dynamic."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

Sizes = Mapping[str, int]
SAMPLE = {
    "batch": 2,
    "height": 32,
    "width": 64,
    "depth": 16,
    "length": 12,
    "samples": 3200,
    "frames": 20,
    "nodes": 6,
    "edges": 14,
    "rows": 5,
    "columns": 7,
    "steps": 6,
}
OTHER = {
    "batch": 3,
    "height": 64,
    "width": 32,
    "depth": 32,
    "length": 9,
    "samples": 4800,
    "frames": 33,
    "nodes": 9,
    "edges": 25,
    "rows": 8,
    "columns": 4,
    "steps": 11,
}
"""The sizes of the example, and those that the file is tried at."""
_INTEGERS = re.compile(r"int(\d+)")


@dataclass(frozen=True)
class Row:
    """A row of the page. An input is written as ``batch 3 height``: names are dynamic sizes. The first word may say what
    it holds: ``unit`` numbers from 0 to 1, ``int20`` integers below 20; else normal ones.
    """

    package: str
    model: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    other: Sizes = field(default_factory=dict)
    """Sizes to try in place of those of ``OTHER``: some models take few."""
    learns: bool = False
    """True if the first call sets weights or statistics: the module is exported after it, as after a training."""

    @property
    def name(self) -> str:
        return f"{self.package}: {self.model}"

    @property
    def axes(self) -> tuple[dict[int, str] | None, ...]:
        """The names of the dynamic axes of each input."""
        named = [{axis: word for axis, word in enumerate(_shape(text)) if word in SAMPLE} for text in self.inputs]
        return tuple(each or None for each in named)

    def sizes(self) -> list[str]:
        """The dynamic sizes in order."""
        return list(dict.fromkeys(word for axes in self.axes for word in (axes or {}).values()))

    def make(self, sizes: Sizes, seed: int) -> tuple[Tensor, ...]:
        """The inputs at these sizes."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_made(text, sizes, generator) for text in self.inputs)


def row(package: str, model: str, build: Callable[[], nn.Module], *inputs: str, **other: int) -> Row:
    return Row(package, model, build, inputs, other)


def trained(row: Row) -> Row:
    """``row`` of a module whose first call sets weights or statistics."""
    return replace(row, learns=True)


def call(
    path: str, *args: Any, then: Callable[[Any], nn.Module] | None = None, **kwargs: Any
) -> Callable[[], nn.Module]:
    """``package.module.Class(*args, **kwargs)``, imported when it is built; ``then`` makes a module of it."""

    def build() -> nn.Module:
        made = at(path)(*args, **kwargs)
        return made if then is None else then(made)

    return build


def apply(path: str, *args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    """A module that applies a function of a package to its inputs, then ``args``."""
    return lambda: Applied(lambda *inputs: at(path)(*inputs, *args, **kwargs))


def each(package: str, prefix: str, inputs: Sequence[str], **calls: Sequence[Any]) -> list[Row]:
    """Rows of functions ``prefix.NAME`` with the same inputs, and of each its further arguments."""
    return [row(package, name, apply(f"{prefix}.{name}", *args), *inputs) for name, args in calls.items()]


def at(path: str) -> Any:
    """The object at ``package.module.name``, with parts that are attributes."""
    first_name, *names = path.split(".")
    found: Any = importlib.import_module(first_name)
    place = first_name
    for name in names:
        place = f"{place}.{name}"
        found = getattr(found, name) if hasattr(found, name) else importlib.import_module(place)
    return found


class Applied(nn.Module):
    """A function as a module; the parts of ``owner`` are its own."""

    def __init__(self, function: Callable[..., Any], owner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.owner = function, owner

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def first(network: Any, method: str = "forward", **keywords: Any) -> nn.Module:
    """The tensors of ``network.method(*inputs, **keywords)``, whatever holds them."""
    return Applied(lambda *inputs: tensors(getattr(network, method)(*inputs, **keywords)), network)


def tensors(value: Any) -> list[Tensor]:
    """All tensors inside lists, tuples, dicts and data classes, in order; complex ones as pairs."""
    if isinstance(value, Tensor):
        return [torch.view_as_real(value) if value.is_complex() else value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = list(vars(value).values())
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, (list, tuple)) else []


def _shape(text: str) -> list[str]:
    words = text.split()
    return words[1:] if words and (words[0] == "unit" or _INTEGERS.fullmatch(words[0])) else words


def _made(text: str, sizes: Sizes, generator: torch.Generator) -> Tensor:
    shape = [sizes[word] if word in SAMPLE else int(word) for word in _shape(text)]
    word = text.split()[0] if text else ""
    if (integers := _INTEGERS.fullmatch(word)) is not None:
        return torch.randint(0, int(integers[1]), shape, generator=generator)
    return (torch.rand if word == "unit" else torch.randn)(shape, generator=generator)
