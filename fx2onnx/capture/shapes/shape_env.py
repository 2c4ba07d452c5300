"""Decisions by symbolic sizes in a run: what is certain of them, and what holds at the example's sizes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.op_table import Op
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import with_inputs
from fx2onnx.sizes.assumptions import Assumption, Condition, Guard, Specialization
from fx2onnx.sizes.bounds import certain
from fx2onnx.sizes.expr import Dim, Scalar, apply
from fx2onnx.sizes.facts import SizesOfRun
from fx2onnx.sizes.relation import Relation, holds_at_all
from fx2onnx.sizes.sets import interval, where_true
from fx2onnx.sizes.solve import NO_EQUALITIES
from fx2onnx.torchcompat.asked_code import asks_in, asserted_by_user, checked_by_user, refused_by_torch, sorts_strides
from fx2onnx.torchcompat.caught_errors import is_caught
from fx2onnx.torchcompat.frames import asked_by_user, user_location
from fx2onnx.torchcompat.source_ast import Stretch


class UnmetNeed(RuntimeError):
    """An operator's need of sizes that the example does not meet."""


KEEP_BOTH = 'data_branches="if" to keep both branches in the file'
"""Advice where Python branches on data."""
DATA_DECIDES = ("E104", "Python control flow depends on tensor data")
BOUNDED = (
    "bound the turns in the test of the while loop: while i < len(x) and ...; the file then has a loop that data ends"
)
NOT_NUMPY = "where NumPy takes it, use PyTorch: torch.zeros(k) in the place of np.zeros(k), and indices of tensors"
KEEP_TENSORS = (
    "torch.cond for two branches",
    "torch.where to select values",
    "torch.while_loop for a loop that the data ends",
)

_ONES = ((1, 1, 1), (1, 2, 3), (2, 1, 3), (3, 2, 1))
_PROBES = ((2, 3, 5), (7, 2, 3), (3, 11, 4), (64, 48, 17), (129, 1, 640), (8191, 4099, 2), (20011, 30011, 40009))


@answers_for_caller
@dataclass
class ShapeEnv(SizesOfRun):
    """Hints of the symbols and what was taken from them during one run.

    Plain data: every size refers to it from C++, where the collector sees no cycle, so that tensors which it led to
    would never be freed. No container is changed in place, except for the log ``asked``, which only grows: ``kept``
    keeps references.
    """

    takes_notes: bool = True
    """Off while a tensor of known type is made anew: what its constructor checks (is it empty? contiguous?) decides nothing."""
    during: str = ""
    """The overload that runs now."""
    assertions: Mapping[Assumption, bool] = field(default_factory=dict)
    """Statements that eager PyTorch checks and the graph takes for true, in order, and whether anything is learnt of them."""
    unchecked: Mapping[Relation, SourceLocation | None] = field(default_factory=dict)
    """Relations taken for true that no node of the graph checks so far."""
    has_size_one_kernels: bool = False
    """True if this run is of a branch that no larger sizes lead into, where kernels found parts of sizes to be 1."""
    next_unbacked: int = 0
    """The number in the name of the next of them."""
    guards: Mapping[tuple[Relation, bool], Guard] = field(default_factory=dict)
    """The guards, by the relation and whether it holds."""
    specializations: Mapping[Dim, Specialization] = field(default_factory=dict)
    """Expressions that were turned into a plain number."""
    asked: list[tuple[str, Any, object]] = field(default_factory=list)
    """Everything decided by the example's sizes, in order: "guard", "check", "look" or "specialize", what, and the
    value."""
    numbers_in: frozenset[str] = frozenset()
    """Names of the files whose code turned a size into a plain number."""
    keeps_numbers_in: frozenset[str] = frozenset()
    """Names of the files whose ``int``, ``float`` and ``range`` keep sizes now."""
    asked_few: bool = False
    """True if Python decided by a number that is one of a few."""
    asks_of_strides: bool = False
    """True if questions of a kernel decide nothing about the sizes of results now: it asks for strides."""
    decides_at: Mapping[str, int] = field(default_factory=dict)
    """Sizes at which Python branches, whatever kernels do: this run is to tell what the module does at these."""
    has_texts_of_sample: bool = False
    """True if ``str(size)`` gives the example's number, as in eager PyTorch, and not the symbol: this run is for comparison."""
    texts: Mapping[SourceLocation | None, None] = field(default_factory=dict)
    """The lines that made a text of a size which is not only printed, logged or raised."""
    no_multiple: tuple[Scalar, int] | None = None
    """A size and a divisor of which it is no multiple, while a statement is read that runs only there."""
    no_multiple_in: Mapping[tuple[Scalar, int], Sequence[Stretch]] = field(default_factory=dict)
    """Places of statements that run whether a size is a multiple or not, by the size and the divisor."""
    either_way: set[str] = field(default_factory=set)
    """Symbols whose comparisons with 0 or 1 decide nothing now: both answers give the same."""
    tracer: Callable[[], Any] = lambda: None
    """A weak reference to the ``Tracer`` of the run, if there is one."""
    some: frozenset[Dim] = frozenset()
    """Sizes that were seen to be needed to be more than 0."""
    tried: Mapping[tuple[str, Relation], bool] = field(default_factory=dict)
    """The answers of overloads that were tried at sizes for which the answer is another, and whether it ends the run
    there."""
    failed_with: frozenset[str] = frozenset()
    """The sizes in the operands of the last operator that raised."""
    leans: bool = False
    """True if an operator needs a relation that was noted for another call: alone, it would note it."""

    @contextlib.contextmanager
    def tried_at(self, sizes: Mapping[str, int]) -> Iterator[None]:
        """Inside, these are the sizes at which the run decides; what is noted and learnt there is forgotten."""
        hints, facts, asked = self.hints, self.facts, self.asked
        self.hints, self.asked, self.takes_notes = {**hints, **sizes}, [], False
        try:
            yield
        finally:
            self.hints, self.facts, self.asked, self.takes_notes = hints, facts, asked, True

    def kept(self) -> ShapeEnv:
        """Everything as it is now, which stays so while this run goes on."""
        now = copy.copy(self)
        self.asked = [*self.asked]
        return now

    def go_back(self, kept: ShapeEnv) -> ShapeEnv:
        """Be as it was kept. Returns everything as it was until now."""
        after = copy.copy(self)
        vars(self).update(vars(kept))
        return after

    def without_guards(self, keys: Collection[tuple[Relation, bool]]) -> None:
        """Forget these guards, which are said elsewhere, or of nothing."""
        if keys:
            self.guards = {key: guard for key, guard in self.guards.items() if key not in keys}

    def note_guard(self, guard: Guard, holds: bool = True, relation: Relation | None = None) -> None:
        """Note a guard under the relation that was asked, its own unless given, and the answer."""
        self.guards = {**self.guards, (relation or guard.relation, holds): guard}

    def note_assertion(self, what: Assumption, is_learnt: bool) -> None:
        """Note a statement that eager PyTorch checks and the graph takes for true."""
        self.assertions = {**self.assertions, what: is_learnt}

    def leave_unchecked(self, relation: Relation, where: SourceLocation | None) -> None:
        """Note a relation for which a node has to be added that checks it."""
        self.unchecked = {**self.unchecked, relation: self.unchecked.get(relation, where)}

    def new_unbacked(self) -> Dim:
        """A new symbol for a number that depends on data; ``Values.tie_symbols`` says later where it comes from."""
        size = Dim.unbacked(self.next_unbacked)
        self.next_unbacked += 1
        self.know(unbacked=self.unbacked | {str(size)})
        self.hints = {**self.hints, str(size): 11 + 2 * len(self.unbacked)}
        return size

    def assume(
        self, what: str | Relation, where: SourceLocation | None, text: str = "", error: type[Exception] | None = None
    ) -> None:
        """Take for true what ends the run with an ``error`` where it is false; the report says ``text`` of it, where there is one."""
        is_learnt = self.equate(what) if isinstance(what, Relation) else True
        if not self.takes_notes:
            return
        self.note_assertion(Assumption(text or str(what), where, "assertion"), is_learnt)
        self._warn_if_caught(error, text or what, where)
        if isinstance(what, Relation):
            self.leave_unchecked(what, where)

    def _warn_if_caught(self, error: type[Exception] | None, what: object, where: SourceLocation | None) -> None:
        tracer = self.tracer() if is_caught(error) else None
        if tracer is not None:
            road("errors that forward catches").warn_of_one_branch(
                tracer, f"an error where {what} does not hold", where
            )

    def are_sizes(self, dims: Sequence[object]) -> None:
        """Numbers of data among ``dims`` are sizes, and so not below 0: what else an operator makes of them is nothing that is in the
        graph.
        """
        for dim in dims:
            if isinstance(dim, Dim) and str(dim) in self.facts.signed:
                self.know(signed=self.facts.signed - {str(dim)})
                if self.takes_notes:
                    self.leave_unchecked(Relation("ge", (dim, 0)), user_location())

    def expect_equal(self, one: Scalar, other: Scalar, stated: Relation | None = None) -> None:
        """An operator needs the two to be equal, which may be ``stated`` in other words; eager PyTorch would end the run
        otherwise.
        """
        if self.certain("eq", one, other):
            return
        relation = Relation("eq", (one, other))
        if relation.symbols() & self.unbacked:
            self.equate(relation)
            self.assume(stated or relation, user_location())
        elif relation.symbols():
            self.guard(stated or relation)

    def expect(self, sign: str, one: Scalar, other: Scalar) -> None:
        """A need that ends the run in eager PyTorch where it is false: checked in the file where data decides it, else a condition. Raises
        UnmetNeed where it is false at the example's sizes, or everywhere.
        """
        known = self.certain(sign, one, other)
        relation = Relation(sign, (one, other))
        if known is None and relation.symbols() & self.unbacked:
            self.assume(relation, user_location())
        elif known is False or not (known or self.check(relation)):
            raise UnmetNeed(f"{self.during or 'an operator'} needs {relation}")

    def expect_of_data(self, relation: Relation) -> None:
        """torch checks ``relation``; that there is anything at all is none of a file's matters, unless the user asks for it."""
        is_bound = relation.op != "eq" and not asked_by_user()
        if not is_bound or not self.holds_at_ordinary_sizes(relation, from_one=True):
            self.assume(relation, user_location())

    def is_no_multiple(self, value: Scalar, number: int) -> bool:
        """Return whether Python went on where ``value`` is no multiple of ``number``."""
        pair = value, number
        if pair == self.no_multiple or (pair in self.no_multiple_in and asks_in(self.no_multiple_in[pair])):
            return True
        rest = apply("mod", value, number)
        differs = Relation("ne", (rest, 0))
        asked = (differs, True) in self.guards or (Relation("eq", (rest, 0)), False) in self.guards
        return asked or self.facts.is_settled(differs) is True

    def look(self, value: Any) -> Any:
        """The value at the example's sizes, for a kernel that needs it without a guard."""
        found = self.hint(value)
        self.asked.append(("look", value, found))
        return found

    def holds_at_ordinary_sizes(self, relation: Relation, *, least: int = 1, from_one: bool = False) -> bool:
        """Return whether ``relation`` is true at the example's sizes and at every size of a varied list, from ``least``
        on; ``from_one``: at 1, too.
        """
        names = sorted(relation.symbols())
        probes = (*_ONES, *_PROBES) if from_one else _PROBES
        tried = [tuple(self.hints[name] for name in names)] if self.hints.keys() >= set(names) else []
        tried += [
            tuple(self._member(name, max(sizes[index % len(sizes)], least)) for index, name in enumerate(names))
            for sizes in probes
        ]
        return holds_at_all(relation, tuple(names), tuple(tried))

    def _member(self, name: str, size: int) -> int:
        """A size that the symbol may have; ``size`` where nothing is known of it."""
        if name not in self.facts.sets:
            return size
        if name not in self.facts.steps:
            self.facts.steps[name] = self.facts.sets[name].progression()
        first, step = self.facts.steps[name]
        member = (first or step) + step * (size - 1)
        return member if member in self.facts.sets[name] else self.hints.get(name, first)

    def guard(self, relation: Relation, by_python: bool = False, by_user: bool = False) -> bool:
        """The truth at the example's sizes, remembered. ``by_python``: for Python, not for a kernel; ``by_user``: for
        the user's, whoever asks.
        """
        by_user = by_python and (by_user or asked_by_user())
        tracer = self.tracer() if by_user else None
        if tracer is not None and tracer.branching.has_loops:
            goes_on: bool | None = tracer.plugin("loops").tests.at_head(relation)
            if goes_on is not None:
                return goes_on
        if self.decides_at and by_user and not self.is_either_way(relation):
            left = relation.at(self.decides_at)
            if isinstance(left, bool):
                return left
            relation = left
        serving: bool | None = tracer.serving_both(relation) if tracer is not None else None
        if serving is not None:
            return serving
        if by_python and not by_user and refused_by_torch():
            refused: bool = road("decisions by sizes").refused(self, relation)
            return refused
        if not self.unbacked or not relation.symbols() & self.unbacked:
            return self.decided(relation) if by_user else self.guarded(relation, by_python)
        where = user_location()
        if by_user:
            if asserted_by_user():
                self.assume(relation, where)
                return True
            error = UserError(
                *DATA_DECIDES,
                where=where,
                why=self.known_at_run(relation),
                next=(*KEEP_TENSORS, KEEP_BOTH),
            )
            error = with_inputs(error, self.inputs_behind(relation.symbols()))
            if tracer is None:
                raise error
            holds: bool = tracer.truth(relation, error)
            self.equate(relation if holds else relation.negated())
            return holds
        return self.facts.as_one(relation) is True or self.guarded(relation, by_python)

    def decided(self, relation: Relation, *, is_needed: bool = False) -> bool:
        """Python's shape-dependent decision: one way in this run, where both are to be in the file. ``is_needed``: else
        the way of the example inputs is a condition.
        """
        answer: bool = road("decisions by sizes").decided(self, relation, is_needed)
        return answer

    def specialize(self, dim: Dim) -> int:
        """The plain number at the example's sizes, remembered as a specialization."""
        number: int = road("decisions by sizes").specialized(self, dim)
        return number

    def check(self, relation: Relation, *, is_equality: bool = False) -> bool:
        """The truth at the example's sizes of what ends the run in eager PyTorch where it is false. Equalities that
        operators ask for may be due to sizes that are 1 at the example's sizes; ``is_equality``: not this one."""
        return self.guarded(relation, by_python=False, ends_run=is_equality or relation.is_bound())

    def was_refused(self) -> bool:
        """Return whether a check was false at the example's sizes: eager PyTorch raises an error there, which forward may catch."""
        return any(how == "check" and answer is False for how, _, answer in self.asked)

    def check_some(self, sizes: Iterable[Scalar]) -> None:
        """Operators of windows end the run where there is not one, or nothing that it is laid over. Raises UnmetNeed there."""
        for size in sizes:
            if isinstance(size, Dim) and size not in self.some:
                self.some |= {size}
                self.expect("gt", size, 0)
            elif isinstance(size, Dim) and size.symbols() & self.unbacked:
                self.leans = True

    def guarded(self, relation: Relation, by_python: bool, ends_run: bool = False, by_user: bool = False) -> bool:
        holds = bool(self.hint(relation))
        if not self.takes_notes:
            return holds
        if relation.op == "and" and holds and not by_python and len(relation.symbols()) > 1:  # each for its own size
            return all(self.guarded(part, by_python, ends_run) for part in relation.args if isinstance(part, Relation))
        if self._decides_nothing(relation, holds, by_python):
            self.asked.append(("look", relation, holds))
            return holds
        self.asked.append(("check" if ends_run else "guard", relation, holds))
        noted = self.guards.get((relation, holds))
        is_news = noted is None or (not noted.ends_run and (ends_run or (by_python and not noted.by_user)))
        is_news = is_news and not (ends_run and holds and self._was_decided(relation))
        if is_news and self.facts.is_settled(relation) is None:
            where, by_user = user_location(), by_user or asked_by_user()
            true = relation if holds else relation.negated()
            is_needed = ends_run and holds and not self.facts.excludes_zero_only(true)
            is_stated = is_needed and where_true(true) is None
            is_stated = is_stated and (checked_by_user() or not self.holds_at_ordinary_sizes(true, from_one=by_python))
            self.note_guard(Guard(true, where, by_user and by_python, self.during, is_stated), holds, relation)
            if is_needed:
                self._warn_if_caught(RuntimeError, true, where)
            if true.op == "eq" or is_needed:
                self.require(true, where, bounded=by_user or is_needed)
        return holds

    def _was_decided(self, true: Relation) -> bool:
        """Return whether Python asked before for sizes at all of which, but 0, ``true`` holds, so that its way is for these alone."""
        names, sizes, left = true.symbols(), where_true(true), interval(1, None)
        asked = [guard.relation for guard in self.guards.values() if guard.by_user]
        for relation in (*self.facts.supposed, *asked):
            found = where_true(relation) if relation.symbols() == names else None
            left = left if found is None else left & found
        return sizes is not None and left.both(sizes) == left

    def _decides_nothing(self, relation: Relation, holds: bool, by_python: bool) -> bool:
        if self.is_either_way(relation) or self.asks_of_strides:
            return True
        return relation.op == "ne" and not holds and self._compares_strides(by_python)

    def is_either_way(self, relation: Relation) -> bool:
        return bool(self.either_way and relation.symbols() <= self.either_way and relation.is_about_zero_or_one())

    def _compares_strides(self, by_python: bool) -> bool:
        """Return whether a kernel asks if two sizes differ: where it needs them to be equal, it asks that, as ``TORCH_CHECK`` does."""
        return not by_python or (self.during in Op.COMPARES_STRIDES.names and not asked_by_user())

    def remembers_comparisons(self) -> bool:
        """Return whether a comparison is the same whenever it is asked, until something is learnt, and leaves no trace."""
        facts = self.facts
        return facts.equalities is NO_EQUALITIES and not facts.signed and not (facts.sets and self.takes_notes)

    def certain(self, op: str, lhs: Any, rhs: Any) -> bool | None:
        """The truth of a comparison at all sizes for which the program is, or None."""
        return self.facts.certain(op, lhs, rhs)

    def may_fail(self, test: Relation) -> bool:
        """Return whether a test may be false although no named size is 0."""
        names = test.symbols()
        is_of_size = len(names) == 1 and not names & self.unbacked
        return self.facts.is_settled(test) is not True and not (is_of_size and self.facts.excludes_zero_only(test))

    def asked_for(self, op: str, lhs: Any, rhs: Any) -> bool | None:
        """``certain`` for torch or Python, which ask: the answer is noted where it does not hold of every size."""
        known = self.facts.certain(op, lhs, rhs)
        if (
            known is not None
            and self.facts.sets
            and self.takes_notes
            and certain(op, lhs, rhs, self.facts.signed) is None
        ):
            self.asked.append(("guard", Relation(op, (lhs, rhs)), known))
        return known

    def note(self, relation: Relation, where: SourceLocation | None) -> None:
        """Note a relation that has to hold as what it says of one size, or as it is."""
        names = sorted(relation.symbols())
        true = where_true(relation) if len(names) == 1 else None
        if true is None:
            self.note_guard(Guard(relation, where, True, self.during, ends_run=True))
            return
        self.narrow(names[0], true)
        self.know(conditions={**self.facts.conditions, Condition(names[0], true, relation, where): None})

    def evaluate_sym_node(self, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None) -> int:
        """The answer to torch's helpers (``guard_or_false`` and its like), which ask what is behind a node."""
        relation = node.value
        may_fall_back = fallback_value is not None and isinstance(relation, Relation)
        if may_fall_back and self.facts.as_one(relation):
            return True
        if may_fall_back and (relation.symbols() & self.unbacked or bool(self.look(relation)) == fallback_value):
            return bool(fallback_value)
        if may_fall_back and sorts_strides():
            return self.look(relation)  # type: ignore[no-any-return]
        return bool(node.guard_bool("", 0)) if node.is_bool() else int(node.guard_int("", 0))

    def _maybe_evaluate_static(self, value: object, **_: object) -> None:
        """torch's helpers ask what is certain of a condition: they are to ask the node."""

    def is_unbacked_symint(self, _: object) -> bool:
        return False

    def inputs_behind(self, names: frozenset[str]) -> list[str]:
        """The inputs that data-dependent sizes depend on."""
        tracer = self.tracer()
        return tracer.inputs_behind_sizes(names) if tracer is not None else []

    def known_at_run(self, dim: Dim | Relation) -> str:
        """The sentence that a size or a relation is known only when the model runs, and what its data-dependent numbers are."""
        tracer = self.tracer()
        known = tracer.values.symbols if tracer is not None else {}
        unbacked = sorted(dim.symbols() & self.unbacked)
        where = None if known.keys() >= {*unbacked} else user_location()  # which makes a number that has no node yet
        place = "" if where is None else f" ({where.relative_file()}:{where.line})"
        origins = {name: known[name].origin() if name in known else f"a number from data{place}" for name in unbacked}
        if isinstance(dim, Dim) and dim.as_symbol() is not None:
            return f"{', '.join(origins.values())} is known only when the model runs"
        what = f"whether {dim} holds" if isinstance(dim, Relation) else dim
        return f"{what} is known only when the model runs; {', '.join(f'{name} is {origin}' for name, origin in origins.items())}"
