"""Arguments for one call of an ATen overload, drawn from its schema: shapes that may fit, dtypes, options given or not."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import benchmarks.overload_product_recipes  # noqa: F401 - registers recipes
from benchmarks.overload_recipes import recipe_of
from benchmarks.overload_values import (
    DTYPES,
    FLOAT_CHOICES,
    FLOATS,
    FLOATS_BY_NAME,
    INDEX_NAMES,
    MASK_NAMES,
    STRINGS,
    scalar,
    tensor,
    weighted,
)

RANKS = {0: 1, 1: 3, 2: 4, 3: 3, 4: 2}
SIZES = {0: 1, 1: 8, 2: 10, 3: 10, 4: 6, 5: 3}
DIMS = frozenset([
    "dim", "axis", "dim0", "dim1", "dim2", "axis0", "axis1", "start_dim", "end_dim", "dimension", "source",
    "destination", "unroll_dim",
])  # fmt: skip
RELATIONS = {"same": 12, "broadcast": 5, "last": 2, "second": 2, "chain": 3, "other": 2, "number": 2}
"""The relations of the shape of a further tensor to that of the first, and their weights."""


class Undrawable(Exception):
    """The schema has an argument of a type that is not drawn here."""


@dataclass(slots=True)
class Drawn:
    """Arguments by their names, in the schema's order; those left out take their default."""

    overload: torch._ops.OpOverload
    given: dict[str, Any] = field(default_factory=dict)

    def call(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, as a caller would write them."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        arguments = self.overload._schema.arguments
        last = max((i for i, a in enumerate(arguments) if a.name in self.given and not a.kwarg_only), default=-1)
        for index, argument in enumerate(arguments):
            if argument.kwarg_only:
                if argument.name in self.given:
                    kwargs[argument.name] = self.given[argument.name]
            elif index <= last:
                args.append(self.given.get(argument.name, argument.default_value))
        return args, kwargs


def draws(overload: torch._ops.OpOverload, seed: int, index: int, tries: int) -> Iterator[Drawn]:
    """Candidates for the call number ``index``; eager PyTorch takes some of them."""
    name = str(overload).partition(".")[2]
    for attempt in range(tries):
        rng = random.Random(zlib.crc32(f"{name}/{seed}/{index}/{attempt}".encode()))
        try:
            yield _Draw(rng, overload, name).arguments()
        except Undrawable:
            return
        except (RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError, NotImplementedError):
            continue  # a recipe for another dtype: eager PyTorch does not make its numbers


def drawer(overload: torch._ops.OpOverload, seed: int, index: int) -> Callable[[Any], Any]:
    """Draws values of an argument that may be left out."""
    name = str(overload).partition(".")[2]
    made = _Draw(random.Random(zlib.crc32(f"{name}/{seed}/{index}".encode())), overload, name)

    def draw(argument: Any) -> Any:
        kind = argument.real_type
        return made.value(argument.name, kind.getElementType() if str(kind).startswith("Optional[") else kind)

    return draw


class _Draw:
    """One set of arguments: ``shape`` and ``dtype`` of the first tensor are what the others go by."""

    def __init__(self, rng: random.Random, overload: torch._ops.OpOverload, name: str) -> None:
        self.rng = rng
        self.overload = overload
        self.name = name
        self.dtype = weighted(rng, DTYPES)
        self.shape = [weighted(rng, SIZES) for _ in range(weighted(rng, RANKS))]
        self.first: torch.Tensor | None = None

    def arguments(self) -> Drawn:
        rng = self.rng
        fitting = recipe_of(self.name.rstrip("_"))
        known: dict[str, Any] = {}
        if fitting is not None and rng.random() < 0.85:
            dtype = self.dtype if self.dtype in FLOATS or rng.random() < 0.4 else torch.float32
            known = fitting(rng, self.name, dtype)
            lead = next((value for value in known.values() if isinstance(value, torch.Tensor)), None)
            if lead is not None:
                self.first, self.shape, self.dtype = lead, list(lead.shape), lead.dtype
        found = Drawn(self.overload)
        for argument in self.overload._schema.arguments:
            text = str(argument.type) if not argument.has_default_value() else ""
            if argument.name in known and not (argument.has_default_value() and rng.random() < 0.15):
                found.given[argument.name] = self.typed(argument, known[argument.name])
            elif text or (rng.random() < 0.5 and not self.is_left(argument)):
                found.given[argument.name] = self.value(argument.name, argument.real_type)
        return found

    def typed(self, argument: Any, value: Any) -> Any:
        """A recipe's value for an argument that takes one number where others take a list."""
        if str(argument.type) == "int" and isinstance(value, list):
            return value[0] if value else 1
        return value

    def is_left(self, argument: Any) -> bool:
        return argument.name in ("generator", "device", "layout", "memory_format", "pin_memory", "non_blocking")

    def value(self, name: str, kind: Any) -> Any:
        text = str(kind)
        if text.startswith("Optional["):
            return None if self.rng.random() < 0.25 else self.value(name, kind.getElementType())
        makers = {
            "Tensor": self.tensor,
            "int": self.integer,
            "SymInt": self.integer,
            "float": self.number,
            "bool": lambda _: self.rng.random() < 0.5,
            "number": lambda name: scalar(self.rng, name, self.dtype),
            "Scalar": lambda name: scalar(self.rng, name, self.dtype),
            "str": self.text,
            "ScalarType": lambda _: weighted(self.rng, DTYPES),
            "List[int]": self.integers,
            "List[SymInt]": self.integers,
            "List[float]": lambda name: [self.number(name) for _ in range(self.rng.randint(1, 3))],
            "List[number]": lambda name: [scalar(self.rng, name, self.dtype) for _ in range(len(self.shape) or 1)],
            "List[bool]": lambda _: [self.rng.random() < 0.7 for _ in range(3)],
            "List[Tensor]": self.tensors,
            "List[Optional[Tensor]]": lambda _: [self.tensor("index")],
        }
        if text not in makers:
            raise Undrawable(text)
        return makers[text](name)

    def tensor(self, name: str) -> torch.Tensor:
        rng = self.rng
        if self.first is None:
            self.first = tensor(rng, self.shape, self.dtype)
            return self.first
        shape = self.related()
        if name in MASK_NAMES:
            return tensor(rng, shape, torch.bool)
        if name in INDEX_NAMES and rng.random() < 0.8:
            high = rng.choice(self.shape) if self.shape else 1
            return tensor(rng, shape, rng.choice([torch.int64, torch.int64, torch.int32]), high=high)
        if name in ("min", "max", "lower", "upper") or rng.random() < 0.85:
            return tensor(rng, shape, self.dtype)
        return tensor(rng, shape, weighted(rng, DTYPES))

    def related(self) -> list[int]:
        rng, shape = self.rng, self.shape
        relation = weighted(rng, RELATIONS)
        if relation == "broadcast":
            kept = [1 if rng.random() < 0.4 else size for size in shape]
            kept = kept[rng.randint(0, len(kept)) :] if rng.random() < 0.5 else kept
            return [weighted(rng, SIZES), *kept] if rng.random() < 0.15 else kept
        if relation == "last":
            return shape[-1:]
        if relation == "second":
            return shape[1:2]
        if relation == "chain" and shape:
            return [*shape[:-2], shape[-1], rng.randint(1, 4)]
        if relation == "other":
            return [weighted(rng, SIZES) for _ in range(weighted(rng, RANKS))]
        return [] if relation == "number" else list(shape)

    def tensors(self, name: str) -> list[torch.Tensor]:
        count = self.rng.randint(1, 4)
        same = self.rng.random() < 0.6
        kind = self.dtype
        if self.first is None:
            self.first = tensor(self.rng, self.shape, kind)
        shapes = [list(self.shape) if same else self.related() for _ in range(count)]
        if name == "indices":
            return [tensor(self.rng, shape, torch.int64, high=min(self.shape, default=1)) for shape in shapes]
        return [
            tensor(self.rng, shape, kind if self.rng.random() < 0.9 else weighted(self.rng, DTYPES)) for shape in shapes
        ]

    def integer(self, name: str) -> int:
        rng, rank = self.rng, max(len(self.shape), 1)
        if name in DIMS:
            return rng.randint(-rank, rank - 1)
        if name in ("reduction", "normalization"):
            return rng.randint(0, 2)
        if name == "dtype":
            return weighted(rng, DTYPES)  # type: ignore[no-any-return]
        if name in ("n", "k", "index", "start", "offset", "diagonal", "shifts", "decimals", "storage_offset"):
            return rng.randint(-2, 3)
        if name in ("groups", "edge_order", "step", "num_layers"):
            return rng.choice([1, 1, 2])
        if name == "end":
            return rng.choice([-1, 1, 2, 3, 9223372036854775807])
        return rng.randint(0, 5)

    def integers(self, name: str) -> list[int]:
        rng, rank = self.rng, len(self.shape)
        if name in ("dim", "dims", "dims_self", "dims_other", "source", "destination"):
            every = rng.sample(range(rank), rank)
            chosen = every if "permute" in self.name or rng.random() < 0.2 else every[: rng.randint(0, rank)]
            return [axis - rank if rng.random() < 0.3 else axis for axis in chosen]
        if name in ("size", "shape", "input_size", "sizes", "input_sizes"):
            return self.sizes()
        if name in ("repeats", "shifts"):
            return [rng.randint(0, 3) for _ in range(rng.choice([rank, rank + 1, 1]))]
        if name in ("pad",):
            return [rng.randint(0, 2) for _ in range(2 * rng.randint(1, 3))]
        if name == "stride":
            return rng.choice([[rng.randint(0, 3) for _ in range(rank)], list(torch.empty(self.shape).stride())])
        if name in ("split_sizes", "split_size") and self.shape:
            total = rng.choice(self.shape)
            cut = rng.randint(0, total)
            return [cut, total - cut]
        return [rng.randint(0, 4) for _ in range(rng.choice([rank, 1, 2, 3]))]

    def sizes(self) -> list[int]:
        """A shape: the first tensor's, one with as many elements, one that it expands to, or any."""
        rng, shape = self.rng, list(self.shape)
        way = rng.random()
        if way < 0.25:
            return rng.sample(shape, len(shape))
        if way < 0.45:
            return [-1, *shape[2:]] if rng.random() < 0.5 else [rng.choice([1, *shape[:1]]), -1]
        if way < 0.7:
            return [rng.randint(1, 3), *[size if size != 1 else rng.randint(1, 3) for size in shape]]
        return [weighted(rng, SIZES) for _ in range(weighted(rng, RANKS))] if way < 0.85 else shape

    def number(self, name: str) -> float:
        return float(self.rng.choice(FLOATS_BY_NAME.get(name, FLOAT_CHOICES)))

    def text(self, name: str) -> str | None:
        if "reduce" in name or name == "mode":
            return str(self.rng.choice(STRINGS[name]))
        if name not in STRINGS:
            raise Undrawable(name)
        return self.rng.choice(STRINGS[name])  # type: ignore[no-any-return]
