"""Inputs to compare on: the user's example inputs, others of their kind, and the example at other sizes, as near, small
and large ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.sets import EVERY, LARGEST, SizeSet
from fx2onnx.sizes.stated import SizeCondition, allowed_sizes, sizes_near
from fx2onnx.sizes.text import Root, parse_dim, root_of, size_of
from fx2onnx.verify.marks import NONE, Marks
from fx2onnx.verify.values import AT_SAMPLE_SIZES, ENDS, InputValues

MOST_BORDERS = 2
"""Runs at borders."""
MOST_GROWTH = 16
"""A size may become so many times what it is."""
FAR = 260
"""A size behind the last bucket of relative positions that anyone uses (128), and behind tables of 256."""
MOST_MARK = 1024
"""The largest number that integers of a module are compared with, such as a window of attention, behind which sizes go."""
MOST_BOUND = 2048
"""The largest number of the file that bounds a size, behind which sizes go."""
MOST_BOUNDS = 3
"""The largest number of them that are tried for each dim."""
MOST_TURNS = 8
"""Sets of inputs at numbers that the module or the file compares with."""
MOST_ALONE = 4
"""Dims that are tried alone."""
_LEAST = 2
"""0 and 1 are borders of everything: of what is compared with them nothing is said here."""
_TIGHT = {"ge": 0, "le": 0, "gt": 1, "lt": -1}
"""The number by which the left side is larger at the border of a comparison."""
_SMALL = (2, 3, 5, 7, 11)
"""Small sizes: unequal, so that no two dims are taken for each other."""


def other_sizes(
    sizes: Mapping[str, int],
    conditions: Collection[SizeCondition],
    marks: Collection[int] = (),
    bounds: Collection[int] = (),
) -> list[dict[str, int]]:
    """Sizes to try beside the example's, the next ones first; all of them keep all conditions. ``marks`` are numbers
    that integers of the module are compared with, ``bounds`` those that the file has beside sizes.
    """
    result: list[dict[str, int]] = []
    borders = itertools.islice(_borders(sizes, conditions), 4 * MOST_BORDERS)
    tries = [
        (_near(wanted, conditions, sizes) for wanted in (_next(sizes, conditions),)),
        itertools.islice((found for found in borders if found != dict(sizes)), MOST_BORDERS),
        (_near(wanted, conditions, sizes) for wanted in _alone(sizes, marks, bounds)),
    ]
    for found in itertools.chain(*tries):
        if found is not None and found not in result and found != dict(sizes):
            result.append(found)
    return result


def empty_sizes(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> list[dict[str, int]]:
    """Each dim alone at 0, with the others as in the example inputs, where all conditions allow it."""
    tries = ({**sizes, name: 0} for name, size in list(sizes.items())[:MOST_ALONE] if size)
    return [found for found in tries if all(each.holds(found) for each in conditions)]


def _near(
    wanted: Mapping[str, int], conditions: Collection[SizeCondition], sizes: Mapping[str, int]
) -> dict[str, int] | None:
    return sizes_near(wanted, conditions, unlike=sizes)


def _next(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> dict[str, int]:
    """The next larger size that the conditions allow of each dim, the next smaller one where there is none; of dims of one
    size others, so that height and width differ.
    """
    allowed = allowed_sizes(conditions)
    result: dict[str, int] = {}
    for name, size in sizes.items():
        one = _neighbour(size, allowed.get(name, EVERY))
        while one != size and any(result[other] == one and sizes[other] == size for other in result):
            following = _neighbour(one, allowed.get(name, EVERY))
            if following <= one:
                break
            one = following
        result[name] = one
    return result


def _neighbour(size: int, allowed: SizeSet) -> int:
    reach = allowed.start + 2 * allowed.period
    above = (other for other in range(size + 1, size + reach + 1) if other in allowed)
    below = (other for other in range(size - 1, 0, -1) if other in allowed)
    return next(above, next(below, size))


def _alone(sizes: Mapping[str, int], marks: Collection[int], bounds: Collection[int]) -> Iterator[dict[str, int]]:
    """All small; then each alone at 1, with the others small, at more than twice its size, far behind that, and behind the
    largest mark. There the others are 2: what is chosen or weighed among one is the same whatever it is.
    """
    small = dict(zip(sizes, itertools.cycle(_SMALL), strict=False))
    twos = dict.fromkeys(sizes, 2)
    yield small
    names = list(sizes)[:MOST_ALONE]
    for name in names:
        yield {**small, name: 1}
    for name in names:
        yield {**twos, name: 2 * sizes[name] + 1}
    yield from _behind(sizes, marks, bounds)
    for name in names:
        yield {**twos, name: _far(sizes[name])}
    mark = max((mark for mark in marks if mark <= MOST_MARK), default=0)
    for name in names:
        if mark >= _far(sizes[name]):
            yield {**twos, name: mark + 1}


def _behind(sizes: Mapping[str, int], marks: Collection[int], bounds: Collection[int]) -> Iterator[dict[str, int]]:
    """Each dim behind the largest numbers of the file that its sizes near the example inputs do not reach, with the
    others at 2."""
    twos = dict.fromkeys(sizes, 2)
    for name in list(sizes)[:MOST_ALONE]:
        reached = max([2 * sizes[name], *(mark for mark in marks if _far(sizes[name]) <= mark <= MOST_MARK)])
        for bound in sorted({bound for bound in bounds if reached <= bound <= MOST_BOUND}, reverse=True)[:MOST_BOUNDS]:
            yield {**twos, name: bound + 2}  # the last place is bound + 1


def _far(size: int) -> int:
    return min(max(FAR, 4 * size + 1), MOST_GROWTH * (size + 1))


def _borders(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> Iterator[dict[str, int]]:
    """The sizes at borders: every dim with conditions of its own at another of its borders; then those of comparisons
    of several dims."""
    allowed = allowed_sizes(conditions)
    ends = {name: found for name, size in sizes.items() if name in allowed and (found := borders(allowed[name], size))}
    at_ends = [
        {**sizes, **{name: found[(place + turn) % len(found)] for turn, (name, found) in enumerate(ends.items())}}
        for place in range(max(map(len, ends.values()), default=0))
    ]
    tight = [
        SizeCondition(each.text, each.where, any_of=(("eq", left, bound),))
        for each in conditions
        for op, left, right in each.any_of[:1]
        if op in _TIGHT and not isinstance(bound := right + _TIGHT[op], float)
    ]
    tries = [(wanted, conditions) for wanted in at_ends]
    tries[1:1] = [(dict(sizes), [*conditions, each]) for each in tight]
    for wanted, keeping in tries:
        near = sizes_near(wanted, keeping, unlike=sizes)
        if near is not None:
            yield near


def borders(allowed: SizeSet, sample: int) -> list[int]:
    """Members of the set that have a neighbour outside of it, such as the least and the largest, and the second least: the
    ends first.
    """
    count = allowed.start + 2 * allowed.period
    if count > LARGEST:
        return []
    _, step = allowed.progression()
    limit = MOST_GROWTH * (sample + 1)
    members = [int(size) for size in np.flatnonzero(allowed.array(max(count, limit))) if _LEAST <= size <= limit]
    if not members:
        return []
    least, last = members[0], allowed.last()
    ends = [size for size in members if size - step not in allowed or (size + step not in allowed and step)]
    chosen = [least, *([last] if last is not None and last in members else []), *members[1:2], *ends]
    return list(dict.fromkeys(chosen))


LARGEST_GROWN = 2**20
"""The largest value of an expression of sizes at other sizes: a file may name any."""
_AT_OTHER_SIZES = ("seed", "large", "ties", "small")
"""Kinds of values at sizes that are not the example's, in turn."""
_DRAWS_A_SEED = 1000
"""Sets of inputs of one seed have numbers of their own below this."""


Rows = Sequence[tuple[int, int] | None]
"""For each argument, the least and the largest integer that picks a row of a table."""


@dataclass(frozen=True, slots=True)
class TriedSample:
    """One set of inputs to try: its sizes, and the kind of its values, ``sample`` for the example's own
    (values.KINDS)."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: str = "sample"
    seed: int = 0
    turn: int = 0
    """The number of the set among those at thresholds."""

    @property
    def is_empty(self) -> bool:
        """True if some size is 0."""
        return 0 in self.sizes.values()


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the tensors of a sample, one for each argument. ``axes`` are None of one that keeps its values."""

    originals: Sequence[torch.Tensor]
    axes: Sequence[Mapping[int, str] | None]
    sizes: Mapping[str, int]
    values: Sequence[InputValues]
    conditions: Sequence[SizeCondition] = ()
    """Conditions under which every axis has a size: with ``n - 8`` positions, n is at least 9."""
    rising: frozenset[int] = frozenset()
    """The places of arguments that are sorted along the last axis."""

    @staticmethod
    def of(
        originals: Sequence[torch.Tensor],
        axes: Sequence[Mapping[int, str] | None],
        rows: Rows,
        marks: Marks = NONE,
        *,
        is_narrow: bool = False,
        rising: frozenset[int] = frozenset(),
    ) -> Maker:
        """``is_narrow``: for a file that computes in float16 where the module does not."""
        pairs = list(zip(originals, axes, strict=True))
        values = [
            InputValues.of(tensor, found, marks, is_narrow=is_narrow)
            for tensor, found in zip(originals, rows, strict=True)
        ]
        sizes = _sizes(pairs)
        return Maker(list(originals), list(axes), sizes, values, _positive(pairs, sizes), rising)

    def make(self, sample: TriedSample, *, mild: bool = False) -> list[torch.Tensor]:
        """The tensors of ``sample``; ``mild``: smaller ones, for a module that does not run on all values of the
        kind."""
        generator = torch.Generator().manual_seed(sample.seed)
        made = []
        for original, axes, values in zip(self.originals, self.axes, self.values, strict=True):
            if axes is None:
                made.append(original)
                continue
            like = _resized(original, axes, self.sizes, sample.sizes) if sample.sizes else original
            values = replace(values.at(self.sizes, sample.sizes), turn=sample.turn)
            if sample.values != "sample":
                like = (values.milder if mild else values.draw)(like, sample.values, generator)
            made.append(like.sort().values if len(made) in self.rising else like)
        return made

    def ends(self) -> list[str]:
        """Kinds of values at the ends that some input has."""
        pairs = zip(self.values, self.originals, self.axes, strict=True)
        found = set().union(*(values.ends(tensor) for values, tensor, axes in pairs if axes is not None))
        return [kind for kind in ENDS if kind in found]

    def turns(self) -> int:
        """The count of sets of inputs at thresholds."""
        pairs = zip(self.values, self.originals, self.axes, strict=True)
        return min(max((each.turns(tensor) for each, tensor, axes in pairs if axes is not None), default=0), MOST_TURNS)

    def numbers(self, sample: TriedSample) -> int:
        """The number of elements of its inputs."""
        total = 0
        for original, axes in zip(self.originals, self.axes, strict=True):
            shape = list(original.shape)
            for axis, text in (axes or {}).items() if sample.sizes else ():
                shape[axis] = _changed(shape[axis], text, self.sizes, sample.sizes)
            total += torch.Size(shape).numel()
        return total


def planned(
    sizes: Mapping[str, int],
    conditions: Sequence[SizeCondition],
    seeds: Sequence[int],
    ends: Sequence[str] = (),
    marks: Sequence[int] = (),
    bounds: Sequence[int] = (),
    turns: int = 1,
) -> Iterator[TriedSample]:
    """The sets of inputs beside the example: one set of other values a seed, sets at other sizes, and sets of values at
    the ends of what they may be: what finds most first. Without seeds every value is the example's.
    """
    for seed in seeds:
        yield TriedSample(f"seed {seed}", values="seed", seed=seed)
    others = other_sizes(sizes, conditions, marks, bounds) if sizes else []
    for turn, found in enumerate(others):
        kind = _AT_OTHER_SIZES[turn % len(_AT_OTHER_SIZES)] if seeds and turn else "sample"
        text = "sizes " + ", ".join(f"{dim} {size}" for dim, size in found.items())
        drawn = turn + _DRAWS_A_SEED * (seeds[0] - 1) if seeds else turn
        yield TriedSample(text if kind == "sample" else f"{text}, {kind}", found, kind, drawn)
        if not seeds and turn == 2:
            return
        if seeds and turn == 0:
            yield from (TriedSample(kind, values=kind, seed=seeds[0]) for kind in AT_SAMPLE_SIZES[:2])
            yield from _at_marks(ends, seeds[0], turns)
    if seeds:
        kinds = AT_SAMPLE_SIZES[2:] if others else AT_SAMPLE_SIZES
        if not others:
            yield from _at_marks(ends, seeds[0], turns)
        yield from (TriedSample(kind, values=kind, seed=seeds[0]) for kind in (*kinds, *ends) if kind != "marks")
        for found in empty_sizes(sizes, conditions):
            yield TriedSample("sizes " + ", ".join(f"{dim} {size}" for dim, size in found.items()), found)


def _at_marks(ends: Sequence[str], seed: int, turns: int) -> Iterator[TriedSample]:
    """Sets of inputs at numbers that the module or the file compares with."""
    for turn in range(turns if "marks" in ends else 0):
        name = f"marks {turn + 1}" if turn else "marks"
        yield TriedSample(name, values="marks", seed=seed + _DRAWS_A_SEED * turn, turn=turn)


def cheapest_first(
    shares: Sequence[tuple[TriedSample, float]], seeds: Sequence[int]
) -> list[tuple[TriedSample, float]]:
    """Sets of inputs, with how large they are, where not all can be tried: small sizes have all kinds of values, too. The
    first has unequal sizes of 2 at least, where there are such: nothing is summed or compared along an axis of 1. Numbers
    at thresholds follow at the same sizes.
    """
    ordered = sorted(shares, key=lambda pair: (pair[0].is_empty, pair[1]))
    large = [pair for pair in ordered if pair[0].sizes and min(pair[0].sizes.values()) > 1]
    if not large:
        return ordered
    first = min(large, key=lambda pair: len(set(pair[0].sizes.values())) < len(pair[0].sizes))
    sample, share = first
    name = sample.name.removesuffix(f", {sample.values}")
    kinds = ["seed", *(["marks"] if any(each.values == "marks" for each, _ in shares) else [])] if seeds else []
    made = [(replace(sample, name=f"{name}, {kind}", values=kind), share) for kind in kinds] or [first]
    return [*made, *(pair for pair in ordered if pair is not first)]


def _positive(
    pairs: list[tuple[torch.Tensor, Mapping[int, str] | None]], sizes: Mapping[str, int]
) -> list[SizeCondition]:
    texts = {text: tensor.shape[axis] for tensor, axes in pairs for axis, text in (axes or {}).items()}
    return [
        SizeCondition(f"{text} >= 1", "", any_of=(("ge", dim, 1),))
        for text, size in texts.items()
        if size and text not in sizes and isinstance(dim := parse_dim(text), Dim) and _says(text, size, sizes)
    ]


def _sizes(pairs: Sequence[tuple[torch.Tensor, Mapping[int, str] | None]]) -> dict[str, int]:
    """The example's size of every dim that is a plain name, or of which an axis has a multiple, such as ``8*frames +
    3``."""
    named = [(root_of(text), tensor.shape[axis]) for tensor, axes in pairs for axis, text in (axes or {}).items()]
    found = sorted(
        ((root, size) for root, size in named if root is not None), key=lambda pair: pair[0] == Root(pair[0].name)
    )
    sizes = {root.name: root.size(size) for root, size in found}  # a plain name comes last, and counts
    texts = [(text, tensor.shape[axis]) for tensor, axes in pairs for axis, text in (axes or {}).items()]
    return sizes | {text: size for text, size in texts if not _says(text, size, sizes)}


def _resized(
    tensor: torch.Tensor, axes: Mapping[int, str], sizes: Mapping[str, int], others: Mapping[str, int]
) -> torch.Tensor:
    """The example with other sizes, its content repeated."""
    for axis, text in axes.items():
        size = _changed(tensor.shape[axis], text, sizes, others)
        index = torch.arange(size) % max(tensor.shape[axis], 1)
        tensor = (
            tensor.index_select(axis, index)
            if tensor.shape[axis]
            else tensor.new_zeros([size if place == axis else length for place, length in enumerate(tensor.shape)])
        )
    return tensor


def _changed(size: int, text: str, sizes: Mapping[str, int], others: Mapping[str, int]) -> int:
    """The value of ``size`` where every name in ``text``, such as ``past + sequence``, has its other size. A text that says
    nothing of the example's size, or more than memory may hold, is one name.
    """
    dim = parse_dim(text)
    if isinstance(dim, Dim) and _says(text, size, sizes):
        grown = size_of(dim, {name: others[name] for name in dim.symbols()})
        if grown is not None and grown <= LARGEST_GROWN:
            return grown
    return others.get(text, size + 1)


def _says(text: str, size: int, sizes: Mapping[str, int]) -> bool:
    """Return whether the text is an expression of known sizes, which gives this one."""
    dim = parse_dim(text)
    return isinstance(dim, Dim) and dim.symbols() <= set(sizes) and size_of(dim, sizes) == size
