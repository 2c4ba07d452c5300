"""Which other sizes a file is tried at: the next ones, and those at the borders of what its conditions allow."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from fx2onnx.base.size_conditions import SizeCondition, allowed_sizes, next_sizes, sizes_near
from fx2onnx.base.size_sets import LARGEST, SizeSet

MOST_BORDERS = 2
"""Runs at borders, beside the one at the next sizes: of small models, whose runs cost most of it, a verification with them takes
1.2 times as long, with one more 1.4 times."""
MOST_GROWTH = 16
"""A size may become so many times what it is."""
_LEAST = 2
"""0 and 1 are borders of everything: what is compared with them is decided as at the sample."""
_TIGHT = {"ge": 0, "le": 0, "gt": 1, "lt": -1}
"""By which number more the left side is at the border of a comparison."""


def other_sizes(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> list[dict[str, int]]:
    """Sizes to try beside the sample's, the next ones first; all of them keep all conditions."""
    found = next_sizes(sizes, conditions)
    result = [] if found is None else [found]
    for wanted in itertools.islice(_borders(sizes, conditions), 4 * MOST_BORDERS):
        if wanted not in result and wanted != dict(sizes) and len(result) <= MOST_BORDERS:
            result.append(wanted)
    return result


def _borders(sizes: Mapping[str, int], conditions: Collection[SizeCondition]) -> Iterator[dict[str, int]]:
    """At each, every dim with conditions of its own is at another of its borders; then those of comparisons of several dims."""
    allowed = allowed_sizes(conditions)
    ends = {name: found for name, size in sizes.items() if name in allowed and (found := borders(allowed[name], size))}
    at_ends = [
        {**sizes, **{name: found[(place + turn) % len(found)] for turn, (name, found) in enumerate(ends.items())}}
        for place in range(max(map(len, ends.values()), default=0))
    ]
    tight = [
        SizeCondition(each.text, each.where, op="eq", left=each.left, right=right)
        for each in conditions
        if each.op in _TIGHT and not isinstance(right := each.right + _TIGHT[each.op], float)
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
