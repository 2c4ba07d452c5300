"""What a file says of the sizes that it is right for: written beside the graph as metadata, obeyed by what runs it.

JSON: a list of objects. ``condition`` is the text for people, ``where`` the line that asks for it. Of one size, ``name`` is
the dim and ``runs`` the lengths of runs of sizes that are out, in, out, ... from 0 on, the last ``period`` of which repeat;
of several, ``op`` compares the expressions ``left`` and ``right``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fx2onnx.base.assumptions import Assumed, Condition, Guard
from fx2onnx.base.dim_text import parse_dim, size_of
from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.base.relations import COMPARE, Relation
from fx2onnx.base.size_sets import EVERY, LARGEST, SizeSet

METADATA_KEY = "fx2onnx.conditions"
"""Model metadata: the conditions as JSON."""


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """One condition, as a file holds it."""

    text: str
    where: str
    name: str = ""
    sizes: SizeSet = EVERY
    op: str = ""
    left: int | Dim = 0
    right: int | Dim = 0

    @property
    def names(self) -> frozenset[str]:
        """The dims that it is about."""
        sides = [side.symbols() for side in (self.left, self.right) if isinstance(side, Dim)]
        return frozenset([self.name]) if self.name else frozenset().union(*sides)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true, or cannot be told, at these sizes."""
        if self.name:
            return self.name not in sizes or sizes[self.name] in self.sizes
        sides = [size_of(side, sizes) if isinstance(side, Dim) else side for side in (self.left, self.right)]
        return None in sides or COMPARE[self.op](*sides)


def written(assumptions: Iterable[Assumed], *, with_guards: bool = True, with_lines: bool = True) -> str | None:
    """The conditions among ``assumptions`` as metadata, with what Python decided by sizes and with the lines that ask
    for it; None where there are none.
    """
    chosen = (assumed for assumed in assumptions if with_guards or not isinstance(assumed, Guard))
    found = [entry for assumed in chosen if (entry := _entry(assumed, with_lines)) is not None]
    return json.dumps(found) if found else None


def _entry(assumed: Assumed, with_lines: bool) -> dict[str, Any] | None:
    where = "" if assumed.where is None or not with_lines else str(assumed.where)
    if isinstance(assumed, Condition):
        lengths = [(is_in, len(list(run))) for is_in, run in itertools.groupby(assumed.sizes.members)]
        runs = [length for _, length in lengths]
        return {
            "condition": assumed.expression,
            "where": where,
            "name": assumed.name,
            "runs": [0, *runs] if lengths[0][0] else runs,
            "period": assumed.sizes.period,
        }
    if (
        isinstance(assumed, Guard)
        and assumed.by_user
        and assumed.relation.op in COMPARE
        and _is_stated(assumed.relation)
    ):
        left, right = (str(arg) for arg in assumed.relation.args)
        return {
            "condition": assumed.expression,
            "where": where,
            "op": assumed.relation.op,
            "left": left,
            "right": right,
        }
    return None


def _is_stated(relation: Relation) -> bool:
    """Whether it compares whole numbers, and not with 0 or 1: the sample's size stands for these."""
    are_whole = all(not arg.is_real if isinstance(arg, Dim) else isinstance(arg, int) for arg in relation.args)
    return are_whole and not relation.compares_with_zero_or_one()


def read(text: str) -> list[SizeCondition]:
    """The conditions of a file. Raises UserError E303 where ``text`` does not hold such."""
    try:
        entries = json.loads(text)
        return [_condition(entry) for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise UserError(
            "E303",
            f"the model's metadata {METADATA_KEY} is malformed",
            why=str(cause)[:200],
            next="export the model again",
        ) from cause


def _condition(entry: Any) -> SizeCondition:
    what, where = str(entry["condition"]), str(entry["where"])
    if "name" not in entry:
        left, right = (parse_dim(str(entry[side])) for side in ("left", "right"))
        if entry["op"] not in COMPARE or left is None or right is None:
            raise ValueError(f"{what!r:.80} is no comparison of sizes")
        return SizeCondition(what, where, op=entry["op"], left=left, right=right)
    runs, period = entry["runs"], entry["period"]
    if not all(isinstance(length, int) and 0 <= length <= LARGEST for length in (*runs, period)) or not runs:
        raise ValueError(f"the runs of {what!r:.80} are no lengths")
    count = sum(runs)
    if not 0 < period <= count <= LARGEST:
        raise ValueError(f"the period of {what!r:.80} is {period}, of {count} sizes")
    members = tuple(bool(place % 2) for place, length in enumerate(runs) for _ in range(length))
    return SizeCondition(what, where, str(entry["name"]), SizeSet(count - period, members))


def next_sizes(sizes: Mapping[str, int], conditions: Iterable[SizeCondition]) -> dict[str, int]:
    """Of each dim the next larger size that the conditions allow, the next smaller one where there is none."""
    allowed: dict[str, SizeSet] = {}
    for condition in conditions:
        if condition.name:
            allowed[condition.name] = allowed.get(condition.name, EVERY) & condition.sizes
    return {name: _neighbour(size, allowed.get(name, EVERY)) for name, size in sizes.items()}


def _neighbour(size: int, allowed: SizeSet) -> int:
    reach = allowed.start + 2 * allowed.period
    above = (other for other in range(size + 1, size + reach + 1) if other in allowed)
    below = (other for other in range(size - 1, 0, -1) if other in allowed)
    return next(above, next(below, size))
