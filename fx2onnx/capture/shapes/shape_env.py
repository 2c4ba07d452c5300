"""Decisions by symbolic sizes in a run: what is certain of them, and what holds at the sample's sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.assumptions import Assumption, Condition, Guard, Specialization
from fx2onnx.base.dims import Dim, Scalar, apply, without_remainders
from fx2onnx.base.errors import UserError
from fx2onnx.base.relations import COMPARE, Relation
from fx2onnx.base.size_sets import EVERY, SizeSet, where_true
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.python.frames import asked_by_user, asserted_by_user, user_location
from fx2onnx.capture.shapes.conditions import declared, sizes_where, solved

KEEP_BOTH = 'data_branches="if" to keep both branches in the file'
"""Advice where Python decides by data."""
DATA_DECIDES = ("E104", "Python control flow depends on tensor data")
KEEP_TENSORS = ("torch.cond for two branches", "torch.where to select values")

_PROBES = ((2, 3, 5), (7, 2, 3), (3, 11, 4), (64, 48, 17), (129, 1, 640), (8191, 4099, 2), (20011, 30011, 40009))


_COMPARES_STRIDES = frozenset({"aten::view", "aten::_unsafe_view", "aten::reshape", "aten::flatten", "aten::unflatten"})
"""Overloads whose kernels in Python compare strides, to choose between a view and a copy of the same elements."""


class RunRecorder(Protocol):
    """What is needed of the recorder."""

    def truth(self, test: Relation, error: UserError) -> bool: ...

    def advice(self, names: frozenset[str]) -> list[str]: ...

    def keeps_both(self) -> bool: ...


@answers_for_caller
@dataclass
class ShapeEnv:
    """Hints of the symbols and what was taken from them during one run.

    Plain data: every size refers to it from C++, where the collector sees no cycle, so that tensors which it led to would
    never be freed.
    """

    hints: dict[str, int] = field(default_factory=dict)
    unbacked: set[str] = field(default_factory=set)
    """Symbols whose number depends on data."""
    next_unknown: int = 0
    """The number in the name of the next of them."""
    guards: dict[tuple[Relation, bool], Guard] = field(default_factory=dict)
    """By the relation and whether it holds."""
    specializations: dict[Dim, Specialization] = field(default_factory=dict)
    """Expressions that were turned into a plain number."""
    sets: dict[str, SizeSet] = field(default_factory=dict)
    """The sizes of a symbol for which the program is; every size where there is no entry."""
    conditions: dict[Condition, None] = field(default_factory=dict)
    """What made them fewer, in order."""
    supposed: dict[Relation, None] = field(default_factory=dict)
    """What holds in this run, as Python decided by it and both branches are to be in the file."""
    before: dict[str, int] = field(default_factory=dict)
    """The sample's sizes where that is not so at them."""
    settled: dict[Relation, bool | None] = field(default_factory=dict)
    """The truth of comparisons at all those sizes, as far as it was asked."""
    asked: list[tuple[str, Any, object]] = field(default_factory=list)
    """Everything decided by the sample's sizes, in order: "guard", "look" or "specialize", what, and the value."""
    takes_notes: bool = True
    """Off while a tensor of known type is made anew: what its constructor checks (is it empty? contiguous?) decides nothing."""
    asks_of_strides: bool = False
    """Whether what a kernel asks now decides nothing about sizes of results."""
    during: str = ""
    """The overload that runs now."""
    recorder: Callable[[], RunRecorder | None] = lambda: None
    """A weak reference to the recorder, if there is one."""
    wanted_number: str = ""
    """The last error because Python needed a number that depends on data."""
    assertions: dict[Assumption, None] = field(default_factory=dict)
    """What eager PyTorch checks and the file does not, in order."""

    def take_for_true(self, what: str, where: SourceLocation | None) -> None:
        """Take for true what ends the run where it is false."""
        self.assertions[Assumption(what, where, "assertion")] = None

    def hint(self, value: Any) -> Any:
        if isinstance(value, Dim):
            return value.evaluate(self.hints)
        if isinstance(value, Relation):
            if value.op in COMPARE:
                return COMPARE[value.op](self.hint(value.args[0]), self.hint(value.args[1]))
            parts = [self.hint(arg) for arg in value.args]
            return not parts[0] if value.op == "not" else all(parts) if value.op == "and" else any(parts)
        return value

    def is_no_multiple(self, value: Scalar, number: int) -> bool:
        """Whether Python went on where ``value`` is no multiple of ``number``."""
        rest = apply("mod", value, number)
        return (Relation("ne", (rest, 0)), True) in self.guards or (Relation("eq", (rest, 0)), False) in self.guards

    def look(self, value: Any) -> Any:
        """The value at the sample's sizes, for a kernel that needs it without a guard."""
        found = self.hint(value)
        self.asked.append(("look", value, found))
        return found

    def holds_at_ordinary_sizes(self, relation: Relation) -> bool:
        """Whether ``relation`` is true at the sample's sizes and at every size of a varied list."""
        names = sorted(relation.symbols())
        hints = self.hints
        try:
            for sizes in ((), *_PROBES) if set(names) <= set(hints) else _PROBES:
                self.hints = hints | {
                    name: self._member(name, sizes[index % len(sizes)]) for index, name in enumerate(names) if sizes
                }
                with contextlib.suppress(ZeroDivisionError):  # no such size
                    if not self.hint(relation):
                        return False
        finally:
            self.hints = hints
        return True

    def _member(self, name: str, size: int) -> int:
        """A size that the symbol may have; ``size`` where nothing is known of it."""
        if name not in self.sets:
            return size
        first, step = self.sets[name].progression()
        member = first + step * size
        return member if member in self.sets[name] else self.hints.get(name, first)

    def guard(self, relation: Relation, by_python: bool = False) -> bool:
        """The truth at the sample's sizes, remembered. ``by_python``: for Python, not for a kernel."""
        if not self.unbacked or not relation.symbols() & self.unbacked:
            return self._decided(relation) if by_python and asked_by_user() else self._guarded(relation, by_python)
        where, by_user = user_location(), asked_by_user()
        if by_user and by_python:
            if asserted_by_user():
                self.take_for_true(str(relation), where)
                return True
            error = UserError(
                *DATA_DECIDES,
                where=where,
                why=f"whether {relation} holds is known only when the model runs",
                next=(*KEEP_TENSORS, KEEP_BOTH, *self._advice(relation.symbols())),
            )
            recorder = self.recorder()
            if recorder is None:
                raise error
            return recorder.truth(relation, error)
        return self._guarded(relation, by_python)

    def _decided(self, relation: Relation) -> bool:
        """Python's decision by sizes: one way in this run, where both are to be in the file."""
        recorder, known = self.recorder(), self.is_settled(relation)
        if known is not None:
            self.asked.append(("guard", relation, known))
            return known
        if recorder is None or not recorder.keeps_both() or asserted_by_user():
            return self._guarded(relation, by_python=True)
        holds = recorder.truth(relation, self._undeclared(relation))
        self.suppose(relation if holds else relation.negated())
        return holds

    def _undeclared(self, relation: Relation) -> UserError:
        at_sample = relation if self.hint(relation) else relation.negated()
        names = ", ".join(sorted(relation.symbols()))
        sizes = where_true(at_sample) if len(relation.symbols()) == 1 else None
        bounds = declared(names, sizes) if sizes is not None else 'Dim("NAME", min=..., max=...)'
        return UserError(
            "E105",
            f"Python decides by the dynamic size {names}",
            where=user_location(),
            why=f"whether {relation} holds differs from size to size",
            next=(
                f"declare in dynamic_shapes a range in which it has one answer, such as {bounds}",
                "or keep the decision in tensors: torch.where, or torch.cond for two branches",
            ),
        )

    def _guarded(self, relation: Relation, by_python: bool) -> bool:
        holds = bool(self.hint(relation))
        if not self.takes_notes:
            return holds
        if self.asks_of_strides or (relation.op == "ne" and not holds and self._compares_strides(by_python)):
            self.asked.append(("look", relation, holds))
            return holds
        self.asked.append(("guard", relation, holds))
        if (relation, holds) not in self.guards and self.is_settled(relation) is None:
            where, by_user = user_location(), asked_by_user()
            true = relation if holds else relation.negated()
            self.guards[relation, holds] = Guard(true, where, by_user and by_python, self.during)
            if true.op == "eq":
                self.require(true, where, bounded=by_user)
        return holds

    def _compares_strides(self, by_python: bool) -> bool:
        """Whether a kernel asks if two sizes differ: where it needs them to be equal, it asks that, as ``TORCH_CHECK`` does."""
        return not by_python or (self.during in _COMPARES_STRIDES and not asked_by_user())

    # -- what is known of sizes -----------------------------------------------------------------------------------
    def certain(self, op: str, lhs: Any, rhs: Any) -> bool | None:
        """The truth of a comparison at all sizes for which the program is, or None."""
        known = certain(op, lhs, rhs)
        if known is None and self.sets:
            relation = Relation(op, (lhs, rhs))
            known = self.is_settled(relation)
            if known is not None and self.takes_notes:
                self.asked.append(("guard", relation, known))
        return known

    def is_settled(self, relation: Relation) -> bool | None:
        """The truth of the relation at all sizes for which the program is, where it has not the same at every size."""
        if self.supposed and relation.op in COMPARE and (known := self._follows(relation)) is not None:
            return known
        if not self.sets or not relation.symbols() & self.sets.keys():
            return None
        if relation not in self.settled:
            self.settled[relation] = self._settled(relation)
        return self.settled[relation]

    def _follows(self, relation: Relation) -> bool | None:
        """The truth of a comparison that was supposed, in this form or another."""
        signs = _signs_of(relation)
        for supposed in self.supposed:
            known = _signs_of(supposed)
            if signs is None or known is None or _either_way(signs[0]) != _either_way(known[0]):
                continue
            possible = known[1] if signs[0] == known[0] else {-sign for sign in known[1]}
            if possible <= signs[1]:
                return True
            if not possible & signs[1]:
                return False
        return None

    def _settled(self, relation: Relation) -> bool | None:
        names = relation.symbols()
        if relation.op in COMPARE and not any(isinstance(arg, Relation) for arg in relation.args):
            gap = relation.args[0] - relation.args[1]
            if isinstance(gap, Dim):
                general = {name: self.sets[name].as_symbol(name) for name in names & self.sets.keys()}
                gap = without_remainders(gap.substitute(general))
            known = _known(relation.op, gap)
            if known is not None:
                return known
        true = where_true(relation) if len(names) == 1 else None
        if true is None:
            return None
        inside = self.sets[next(iter(names))]
        both = inside & true
        return True if both == inside else False if not both.first(1) else None

    def suppose(self, relation: Relation) -> None:
        """From here on, this run is for sizes at which the relation holds; hints are such sizes."""
        self.supposed[relation] = None
        names = sorted(relation.symbols())
        true = where_true(relation) if len(names) == 1 else None
        if true is not None:
            self.sets[names[0]] = self.sets.get(names[0], EVERY) & true
        self.settled.clear()
        if not self.hint(relation):
            self.before |= {name: self.hints[name] for name in names if name not in self.before}
            self.hints |= sizes_where(relation, {name: self.sets.get(name, EVERY) for name in names}, self.hints)

    def note(self, relation: Relation, where: SourceLocation | None) -> None:
        """Note a relation that has to hold as what it says of one size, or as it is."""
        names = sorted(relation.symbols())
        true = where_true(relation) if len(names) == 1 else None
        if true is None:
            self.guards[relation, True] = Guard(relation, where, True, self.during)
            return
        self.sets[names[0]] = self.sets.get(names[0], EVERY) & true
        self.conditions[Condition(names[0], true, relation, where)] = None
        self.settled.clear()

    def sample_sizes(self) -> dict[str, int]:
        """Of the symbols that no data decides."""
        sizes = self.hints | self.before
        return {name: size for name, size in sizes.items() if name not in self.unbacked}

    def at_sample(self) -> None:
        """With the sample's sizes as hints, after a run that was for others."""
        self.hints |= self.before
        self.before.clear()
        self.settled.clear()

    def joined(self, other: ShapeEnv, test: object) -> ShapeEnv:
        """What is known where a run went as ``self`` where ``test`` holds, and as ``other`` where it does not."""
        guards = {
            key: guard
            for env in (other, self)
            for key, guard in env.guards.items()
            if env.is_settled(guard.relation) is None
        }
        sets = {name: self.sets.get(name, EVERY) & other.sets.get(name, EVERY) for name in {**self.sets, **other.sets}}
        conditions = self.conditions | other.conditions
        name = next(iter(test.symbols()), "") if isinstance(test, Relation) and len(test.symbols()) == 1 else ""
        if name in self.sets and name in other.sets and name not in self.unbacked:
            sets[name] = self.sets[name] | other.sets[name]
            conditions = {
                self._unless(condition, (other if condition in self.conditions else self).sets[name])
                if condition.name == name and (condition in self.conditions) != (condition in other.conditions)
                else condition: None
                for condition in conditions
            }
        for env in (self, other):
            env.at_sample()
        self.hints |= other.hints
        self.unbacked |= other.unbacked
        self.guards, self.sets, self.conditions = guards, sets, conditions
        self.specializations = other.specializations | self.specializations
        self.assertions |= other.assertions
        self.supposed = {relation: None for relation in self.supposed if relation in other.supposed}
        self.settled.clear()
        return self

    @staticmethod
    def _unless(condition: Condition, others: SizeSet) -> Condition:
        """For a branch alone: other sizes do not come there."""
        return replace(condition, sizes=condition.sizes | others)

    def noted_conditions(self) -> list[Condition]:
        """One for each size and line."""
        noted: dict[tuple[str, SourceLocation | None], Condition] = {}
        for condition in self.conditions:
            key = condition.name, condition.where
            before = noted.get(key)
            if before is not None:
                both = Relation("and", (before.relation, condition.relation))
                condition = replace(condition, sizes=before.sizes & condition.sizes, relation=both)
            noted[key] = condition
        return list(noted.values())

    def require(self, relation: Relation, where: SourceLocation | None, *, bounded: bool) -> bool:
        """Note what a relation that has to hold needs of single sizes; whether there is a choice of such sizes.

        bounded: also where that is an upper bound. What kernels decide at the sample alone, such as that there is one
        window, need not hold of the program.
        """
        found = solved(relation, self.hints)
        for name, (true, sizes) in (found or {}).items():
            before = self.sets.get(name, EVERY)
            after = before & sizes
            is_bounded = sizes.last() is not None and not bounded
            if is_bounded or after.is_single() or self.hints[name] not in after:
                return False
            if after != before:
                self.sets[name] = after
                self.settled.clear()
                self.conditions[Condition(name, sizes, true, where)] = None
        return found is not None

    def evaluate_sym_node(self, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None) -> int:
        """The answer to torch's helpers (``guard_or_false`` and its like), which ask what is behind a node."""
        relation = node.value
        may_fall_back = fallback_value is not None and isinstance(relation, Relation)
        if may_fall_back and (relation.symbols() & self.unbacked or bool(self.look(relation)) == fallback_value):
            return bool(fallback_value)
        return bool(node.guard_bool("", 0)) if node.is_bool() else int(node.guard_int("", 0))

    def _maybe_evaluate_static(self, value: object, **_: object) -> None:
        """torch's helpers ask what is certain of a condition: they are to ask the node."""

    def is_unbacked_symint(self, _: object) -> bool:
        return False

    def _advice(self, names: frozenset[str]) -> list[str]:
        """What else to do where symbols of unknown size are in the way."""
        recorder = self.recorder()
        return recorder.advice(names) if recorder is not None else []

    def specialize(self, dim: Dim) -> int:
        """The plain number at the sample's sizes, remembered as a specialization."""
        where = user_location()
        if dim.symbols() & self.unbacked:
            error = UserError(
                "E104",
                "Python needs a number that only the data tells",
                where=where,
                why=f"{dim} is known only when the model runs",
                next=(
                    "where the number is a size, take it with x.item() and not with int(x), which must be a plain number",
                    "or keep it a tensor, or pass it as an argument of forward",
                    *self._advice(dim.symbols()),
                ),
            )
            self.wanted_number = str(error)
            raise error
        number = int(dim.evaluate(self.hints))
        self.asked.append(("specialize", dim, number))
        self.specializations.setdefault(dim, Specialization(dim, number, where))
        return number


_SIGNS = {"eq": {0}, "ne": {-1, 1}, "lt": {-1}, "le": {-1, 0}, "gt": {1}, "ge": {0, 1}}


def _signs_of(relation: Relation) -> tuple[Dim, set[int]] | None:
    """Which signs the difference of its sides may have."""
    if relation.op not in _SIGNS or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    return (gap, _SIGNS[relation.op]) if isinstance(gap, Dim) else None


def _either_way(gap: Dim) -> frozenset[Dim]:
    """The same for a difference and its negative."""
    return frozenset((gap, -gap))


def certain(op: str, lhs: Any, rhs: Any) -> bool | None:
    """The truth of a comparison whatever the sizes are (all symbols >= 0), or None."""
    gap = lhs - rhs
    known = _known(op, gap)
    if known is not None or not isinstance(gap, Dim):
        return known
    whole = without_remainders(gap)
    return None if whole is gap else _known(op, whole)


def _known(op: str, gap: Any) -> bool | None:
    """The truth of ``gap`` compared with 0."""
    if not isinstance(gap, Dim):
        return COMPARE[op](gap, 0)
    low, high = _bounds(gap)
    if low is not None and low > 0:
        return op in ("ne", "gt", "ge")
    if high is not None and high < 0:
        return op in ("ne", "lt", "le")
    if low == 0 and op in ("ge", "lt"):
        return op == "ge"
    if high == 0 and op in ("le", "gt"):
        return op == "le"
    return None


def _bounds(dim: Dim) -> tuple[float | None, float | None]:
    """Lower and upper bound where every symbol is >= 0 and atoms of unknown sign say nothing."""
    low: float | None = dim.constant
    high: float | None = dim.constant
    for monomial, factor in dim.terms.items():
        if not all(_nonnegative(atom) for atom in monomial):
            return None, None
        if factor > 0:
            high = None
        else:
            low = None
    return low, high


DEEPEST = 50
"""Operations inside each other, of whose sign nothing is said: that needs a look at all of them."""


def _nonnegative(atom: Any) -> bool:
    if atom.op == "symbol":
        return True
    if atom.depth > DEEPEST:
        return False
    if atom.op == "max":
        return any(map(_is_nonnegative, atom.args))
    if atom.op == "mod" and type(atom.args[1]) is int:
        return atom.args[1] > 0
    return atom.op in _KEEPS_SIGN and all(map(_is_nonnegative, atom.args))


_KEEPS_SIGN = frozenset({"floordiv", "truediv", "mod", "min", "float", "floor", "ceil", "sqrt"})
"""Functions whose value is >= 0 where their arguments are."""


def _is_nonnegative(arg: Scalar) -> bool:
    low = _bounds(arg)[0] if isinstance(arg, Dim) else arg
    return low is not None and low >= 0
