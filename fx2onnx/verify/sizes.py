"""Which other sizes a file is tried at: near the sample's, small and large, each alone, and at the borders of its conditions."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from fx2onnx.sizes.sets import EVERY, LARGEST, SizeSet
from fx2onnx.sizes.stated import SizeCondition, allowed_sizes, sizes_near

MOST_BORDERS = 2
"""Runs at borders."""
MOST_GROWTH = 16
"""A size may become so many times what it is."""
FAR = 260
"""Behind the last bucket of relative positions that anyone uses (128), and behind tables of 256."""
MOST_MARK = 1024
"""The largest number that integers of a module are compared with, such as a window of attention, behind which sizes go."""
MOST_BOUND = 2048
"""Likewise of numbers of the file that bound a size."""
MOST_BOUNDS = 3
"""So many of them are tried for each dim."""
MOST_ALONE = 4
"""Dims that are tried alone."""
_LEAST = 2
"""0 and 1 are borders of everything: of what is compared with them nothing is said here."""
_TIGHT = {"ge": 0, "le": 0, "gt": 1, "lt": -1}
"""By which number more the left side is at the border of a comparison."""
_SMALL = (2, 3, 5, 7, 11)
"""Small sizes: unequal, so that no two dims are taken for each other."""


def other_sizes(
    sizes: Mapping[str, int],
    conditions: Collection[SizeCondition],
    marks: Collection[int] = (),
    bounds: Collection[int] = (),
) -> list[dict[str, int]]:
    """Sizes to try beside the sample's, the next ones first; all of them keep all conditions. ``marks`` are numbers that
    integers of the module are compared with, ``bounds`` those that the file has beside sizes.
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
    """Each dim alone at 0, with the others as in the sample, where all conditions allow it."""
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
    """Each dim behind the largest numbers of the file that its sizes near the sample do not reach, with the others at 2."""
    twos = dict.fromkeys(sizes, 2)
    for name in list(sizes)[:MOST_ALONE]:
        reached = max([2 * sizes[name], *(mark for mark in marks if _far(sizes[name]) <= mark <= MOST_MARK)])
        for bound in sorted({bound for bound in bounds if reached <= bound <= MOST_BOUND}, reverse=True)[:MOST_BOUNDS]:
            yield {**twos, name: bound + 2}  # the last place is bound + 1


def _far(size: int) -> int:
    return min(max(FAR, 4 * size + 1), MOST_GROWTH * (size + 1))


def _borders(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> Iterator[dict[str, int]]:
    """At each, every dim with conditions of its own is at another of its borders; then those of comparisons of several dims."""
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
