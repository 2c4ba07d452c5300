"""Conditions on the sizes for which a file is right: written beside the graph as metadata, obeyed by what runs it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import CONDITIONS
from fx2onnx.base.typed_json import built, metadata
from fx2onnx.sizes.assumptions import Assumed, Condition, Guard
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.sizes.sets import EVERY, LARGEST, SizeSet
from fx2onnx.sizes.text import integer_of, parse_dim

METADATA_KEY = CONDITIONS
"""Model metadata: the conditions as JSON, a list of ``StatedCondition``."""


NEWEST = 2
"""The newest form of an entry that is read: 2 knows ``unless``."""
Op: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]
MOST_CLAUSES = 16
"""The largest number of clauses that state one relation of sizes."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``op`` compares the expressions ``left`` and ``right``, as JSON holds it."""

    op: Op
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class StatedCondition:
    """One condition as JSON holds it: in the file's metadata, and in the manifest of a folder.

    ``condition`` is the text for people, ``where`` the line that asks for it. Of one size, ``name`` is the dim and ``runs``
    the lengths of runs of sizes that are out, in, out, ... from 0 on, the last ``period`` sizes of which repeat; of several,
    ``op`` compares the expressions ``left`` and ``right``, which need not hold where a comparison of ``unless`` does. A reader
    that does not know a key would refuse what the file is right for, or take what it is not: it refuses the file and names the
    key, so the form that an entry needs stands before what is new in it.
    """

    condition: str
    where: str
    name: str = ""
    runs: tuple[int, ...] = ()
    period: int = 0
    op: Literal["", "eq", "ne", "lt", "le", "gt", "ge"] = ""
    left: str = ""
    right: str = ""
    needs_newer_reader: int = 1
    unless: tuple[Comparison, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The keys that have to be written: the others have their defaults."""
        stated = dataclasses.asdict(self)
        kept = (
            ("condition", "where", "name", "runs", "period")
            if self.name
            else ("condition", "where", "op", "left", "right", *_WITH_UNLESS[bool(self.unless)])
        )
        return {key: stated[key] for key in kept}


_WITH_UNLESS = ((), ("needs_newer_reader", "unless"))


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """One condition, as a file holds it."""

    text: str
    where: str
    name: str = ""
    sizes: SizeSet = EVERY
    any_of: tuple[tuple[str, int | Dim, int | Dim], ...] = ()
    """Comparisons of sizes, one of which holds."""

    @property
    def names(self) -> frozenset[str]:
        """The dims that it is about."""
        sides = [side.symbols() for _, *pair in self.any_of for side in pair if isinstance(side, Dim)]
        return frozenset([self.name]) if self.name else frozenset().union(*sides)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the condition is true, or not known, at these sizes."""
        if self.name:
            return self.name not in sizes or sizes[self.name] in self.sizes
        for op, *pair in self.any_of:
            sides = [integer_of(side, sizes) if isinstance(side, Dim) else side for side in pair]
            if None in sides or COMPARE[op](*sides):
                return True
        return False

    @staticmethod
    def of(stated: StatedCondition) -> SizeCondition:
        """Raises ValueError where it says nothing of sizes."""
        what, where = stated.condition, stated.where
        if not stated.name:
            found = []
            for op, *texts in ((stated.op, stated.left, stated.right), *map(dataclasses.astuple, stated.unless)):
                left, right = map(parse_dim, texts)
                if not op or left is None or right is None:
                    raise ValueError(f"{what!r:.80} is no comparison of sizes")
                found.append((op, left, right))
            return SizeCondition(what, where, any_of=tuple(found))
        count = sum(stated.runs)
        if not all(0 <= length <= LARGEST for length in stated.runs):
            raise ValueError(f"the runs of {what!r:.80} are no lengths")
        if not 0 < stated.period <= count <= LARGEST:
            raise ValueError(f"the period of {what!r:.80} is {stated.period}, of {count} sizes")
        members = b"".join(bytes([place % 2]) * length for place, length in enumerate(stated.runs))
        return SizeCondition(what, where, stated.name, SizeSet(count - stated.period, members))


def check_sizes(
    what: str, conditions: Iterable[SizeCondition], sizes: Mapping[str, int], places: Mapping[str, str]
) -> None:
    """Raises UserError E401 for sizes that ``what`` is not right for; ``places`` says where each was found."""
    for condition in conditions:
        if not condition.holds(sizes):
            given = ", ".join(f"{name} is {sizes[name]} ({places[name]})" for name in sorted(condition.names))
            raise UserError(
                "E401",
                f"{what} is for sizes with {condition.text}",
                why=given + (f"; {condition.where} asks for it" if condition.where else ""),
                next="feed such sizes, or export the module with example inputs of other sizes",
            )


def written(
    assumptions: Iterable[Assumed], *, with_guards: bool = True, with_lines: bool = True, beside: str = "[]"
) -> str | None:
    """The conditions among ``assumptions`` as metadata, with what Python decided by sizes and with the lines that ask
    for it, behind those that stand in ``beside``; None where there are none.
    """
    chosen = (assumed for assumed in assumptions if with_guards or not isinstance(assumed, Guard))
    found = dict.fromkeys(read_stated(beside))
    found |= {stated: None for assumed in chosen for stated in _stated(assumed, with_lines)}
    return json.dumps([stated.as_dict() for stated in found]) if found else None


def _stated(assumed: Assumed, with_lines: bool) -> list[StatedCondition]:
    where = "" if assumed.where is None or not with_lines else str(assumed.where)
    if isinstance(assumed, Condition):
        lengths = [(is_in, len(list(run))) for is_in, run in itertools.groupby(assumed.sizes.members)]
        runs = tuple(length for _, length in lengths)
        runs = (0, *runs) if lengths[0][0] else runs
        return [StatedCondition(assumed.expression, where, assumed.name, runs, assumed.sizes.period)]
    if not isinstance(assumed, Guard) or not assumed.is_stated:
        return []
    return [
        StatedCondition(
            assumed.expression,
            where,
            op=last.op,
            left=last.left,
            right=last.right,
            needs_newer_reader=NEWEST if before else 1,
            unless=tuple(before),
        )
        for *before, last in _clauses(assumed.relation) or []
    ]


def _clauses(relation: Relation) -> list[list[Comparison]] | None:
    """The relation as lists of comparisons, of each of which one holds; None where it has no such form, or a long one."""
    if relation.op in COMPARE:
        if not all(not arg.is_real if isinstance(arg, Dim) else isinstance(arg, int) for arg in relation.args):
            return None
        left, right = map(str, relation.args)
        if parse_dim(left) is None or parse_dim(right) is None:
            return None  # longer than what is read
        return [[Comparison(cast("Op", relation.op), left, right)]]
    parts = [_clauses(arg) for arg in relation.args if isinstance(arg, Relation)]
    if relation.op not in ("and", "or") or len(parts) < len(relation.args):
        return None
    lists = [part for part in parts if part is not None]
    if len(lists) < len(parts):
        return None
    if relation.op == "and":
        return list(itertools.chain(*lists))
    if math.prod(map(len, lists)) > MOST_CLAUSES:
        return None
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*lists)]


def read(text: str) -> list[SizeCondition]:
    """The conditions of a file. Raises UserError E303 where ``text`` does not hold such."""
    return [condition for _, condition in _read(text)]


def read_stated(text: str) -> tuple[StatedCondition, ...]:
    """The conditions of a file in the form that they are written in. Raises UserError E303 where ``text`` does not hold such."""
    return tuple(stated for stated, _ in _read(text))


def _read(text: str) -> list[tuple[StatedCondition, SizeCondition]]:
    with metadata(METADATA_KEY):
        found = json.loads(text)
        check_form(found)
        entries = built(tuple[StatedCondition, ...], found, METADATA_KEY)
        return [(stated, SizeCondition.of(stated)) for stated in entries]


def check_form(entries: object) -> None:
    """Raises UserError E303 where one of the entries is of a newer form than this version reads."""
    forms = [entry.get("needs_newer_reader") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []  # fmt: skip
    newest = max((form for form in forms if type(form) is int), default=1)
    if newest > NEWEST:
        raise UserError(
            "E303",
            f"the conditions on sizes are of form {newest}, which this version of fx2onnx does not know",
            why=f"it reads forms up to {NEWEST}; without its conditions a file may be run at sizes that it is not right for",
            next="read it with the version of fx2onnx that wrote it, or a newer one",
        )


def allowed_sizes(conditions: Iterable[SizeCondition]) -> dict[str, SizeSet]:
    """The sizes that each dim with conditions of its own may have."""
    allowed: dict[str, SizeSet] = {}
    for condition in conditions:
        if condition.name:
            allowed[condition.name] = allowed.get(condition.name, EVERY) & condition.sizes
    return allowed


MOST_TRIED = {1: 4096, 2: 96, 3: 20}
"""Sizes that are tried of each dim, by the number of dims that depend on each other."""
FEWEST_TRIED = 6


def sizes_near(
    wanted: Mapping[str, int], conditions: Collection[SizeCondition], *, unlike: Mapping[str, int]
) -> dict[str, int] | None:
    """``wanted``, or where it does not keep all conditions the nearest sizes that do, of as many dims as possible others
    than ``unlike``; None where none are found.
    """
    broken = [condition for condition in conditions if not condition.holds(wanted)]
    if not broken:
        return dict(wanted)
    names = sorted(frozenset[str]().union(*(condition.names for condition in broken)) & wanted.keys())
    while True:  # dims that depend on these depend on each other
        more = frozenset[str]().union(*(c.names for c in conditions if c.names & set(names))) & wanted.keys()
        if more <= set(names):
            break
        names = sorted(more)
    allowed, count = allowed_sizes(conditions), MOST_TRIED.get(len(names), FEWEST_TRIED)
    choices = [_around(wanted[name], allowed.get(name, EVERY), count) for name in names]

    def distance(chosen: tuple[int, ...]) -> tuple[int, int]:
        pairs = list(zip(names, chosen, strict=True))
        return sum(size == unlike.get(name) for name, size in pairs), sum(
            abs(size - wanted[name]) for name, size in pairs
        )

    for chosen in sorted(itertools.islice(itertools.product(*choices), 10_000), key=distance):
        found = {**wanted, **dict(zip(names, chosen, strict=True))}
        if found != dict(unlike) and all(condition.holds(found) for condition in conditions):
            return found
    return None


def _around(size: int, allowed: SizeSet, count: int) -> list[int]:
    """The ``count`` nearest that are allowed, 1 at least."""
    reach = range(max(size - 4096, 1), size + 4096)
    return sorted((other for other in reach if other in allowed), key=lambda other: abs(other - size))[:count]
