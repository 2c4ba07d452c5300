"""Further runs of a module, which tell what one run leaves open: sizes of 0 and 1, and texts that forward makes of sizes.

The run decides whether a size is 0 or 1 as for larger ones. A further run decides that as at 1, or at 0, everything else as before.
Mostly it gives the same program, as where a mask is left out that hides nothing, and there is nothing to do. Else both are in the file,
or the size is none that the file is for.

``f"{x.shape[0]}"`` shows a symbol during capture, and digits in eager PyTorch. As a key of a cache or in a message that makes no
difference. Where the text is compared, measured or looked up, it decides what forward computes. A further run, whose texts show the
example's digits, tells the two apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import drop_frames
from fx2onnx.capture.attempt import Attempt, Outcome, Recorded, SmallSizes, asked_of_small, small_sizes
from fx2onnx.capture.branches.merge import Merge, Path
from fx2onnx.capture.branches.numbering import common_calls, common_weights, equivalent_at
from fx2onnx.capture.captured import Captured, TensorInfo
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.decisions import Decision
from fx2onnx.capture.shapes.deciding import undeclared
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Guard, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY

MOST_RUNS = 6
"""Further runs of the module; decisions that are left then are decided as at the example's sizes, and reported."""


def right_at_small(
    done: Recorded, run: Callable[[Attempt], Outcome], capture: Callable[[Attempt], Recorded]
) -> Recorded:
    """``done``, made right at sizes 0 and 1 by further runs. ``run``: one attempt; ``capture``: until nothing is left to change.

    Raises UserError E105 where a size that is asked for by name is 0 or 1 in the example inputs, and cannot be dynamic
    then.
    """
    return _AtSmallSizes(done, run, capture).settled()


@dataclass
class _AtSmallSizes:
    done: Recorded
    run: Callable[[Attempt], Outcome]
    capture: Callable[[Attempt], Recorded]
    tried: dict[SmallSizes, None] = field(default_factory=dict)

    def settled(self) -> Recorded:
        pending = asked_of_small(self.done.shape_env, self.done.attempt)
        while pending and len(self.tried) < MOST_RUNS:
            small = min(pending, key=lambda small: (-max(size for _, size in small), len(small), sorted(small)))
            guard = pending.pop(small)
            self.tried[small] = None
            for more, later in self._settle(small, guard).items():
                if small | more not in self.tried and _is_possible(small | more):
                    pending.setdefault(small | more, later)
            if not pending and len(self.tried) > 1:
                every: SmallSizes = frozenset(pair for tried in self.tried for pair in tried if pair[1])
                pending = {} if every in self.tried or not every else {every: guard}
        self._forget_guards()
        return self.done

    def _forget_guards(self) -> None:
        """Drop the guards of sizes that are settled: the file no longer depends on them."""
        captured, env = self.done.captured, self.done.shape_env
        settled = [
            guard
            for guard in captured.assumptions
            if isinstance(guard, Guard) and guard.by_user and self._is_settled(small_sizes(guard.relation))
        ]
        captured.assumptions = [each for each in captured.assumptions if each not in settled]
        env.without_guards({key for key, guard in env.guards.items() if guard in settled})

    def _is_settled(self, small: list[SmallSizes]) -> bool:
        return bool(small) and all(each in self.tried for each in small)

    def _settle(self, small: SmallSizes, guard: Guard) -> dict[SmallSizes, Guard]:
        """Make the program right where the sizes are these; what else Python asks there."""
        at = dict(small)
        attempt = self.done.attempt
        change = f"Python decides as where {' and '.join(f'{name} is {size}' for name, size in sorted(at.items()))}"
        further = replace(attempt.without_baselines(), sizes=replace(attempt.sizes, decides_at=at), change=change)
        other = self._numbered_apart(further, self.run(further))
        if isinstance(other, Recorded):
            if _needs_no_more(other.shape_env, self.done.shape_env, at.keys()):
                asked = asked_of_small(other.shape_env, attempt)
                is_same = equivalent_at(self.done.captured, other.captured, at)
                if is_same or self._join(other, at, guard):
                    has_none_apart = not is_same and 0 in at.values()
                    known = {} if has_none_apart else asked_of_small(self.done.shape_env, attempt)
                    return {more: later for more, later in asked.items() if more not in known}
        else:
            drop_frames(other.error)
        if 0 in at.values() and not any(hints_of(attempt.arguments).get(name) == 0 for name in at):
            self._leave_out(at, guard)  # runs for what hardly anybody feeds
        else:
            self._with_numbers(at, guard)
        return {}

    def _numbered_apart(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """A run in which no symbol stands for another size than in the general program."""
        one = self.done.captured
        if not isinstance(outcome, Recorded) or not outcome.shape_env.unbacked:
            return outcome
        calls = common_calls(one, outcome.captured)
        if not _new_symbols(one, calls) & _new_symbols(outcome.captured, calls):
            return outcome
        return self.run(self._apart(attempt))

    def _apart(self, attempt: Attempt) -> Attempt:
        """The attempt with numbers of its own for data-dependent sizes."""
        return replace(attempt, sizes=replace(attempt.sizes, next_unbacked=self.done.shape_env.next_unbacked))

    def _with_numbers(self, at: dict[str, int], guard: Guard) -> None:
        """Join the program of the module with the numbers for the sizes, or leave these out."""
        attempt = self.done.attempt
        options = replace(
            attempt.options, strategy=attempt.program.strategy
        )  # another would cost seconds for a single size
        attempt = self._apart(replace(attempt, request=replace(attempt.request, options=options)))
        try:
            for name, size in sorted(at.items()):
                attempt = attempt.specialized(Specialization(Dim.symbol(name), size, guard.where))
            other = self.capture(attempt)
        except UserError as error:
            drop_frames(error)
            self._leave_out(at, guard)
            return
        fits = _needs_no_more(other.shape_env, self.done.shape_env, at.keys())
        if not (fits and self._join(_of_any_size(other, self.done.captured), at, guard)):
            self._leave_out(at, guard)

    def _leave_out(self, at: dict[str, int], guard: Guard) -> None:
        """The file is for other sizes than these; of several sizes that are 1 together, the guard says so."""
        if len(at) > 1:
            return
        ((name, size),) = at.items()
        env, captured = self.done.shape_env, self.done.captured
        if hints_of(self.done.attempt.arguments).get(name) == size:
            self._keep_the_samples(name, size, guard)
            return
        before = set(env.facts.noted_conditions())
        env.note(Relation("ne", (Dim.symbol(name), size)), guard.where)
        after = env.facts.noted_conditions()
        gone = before - set(after)
        captured.assumptions = [each for each in captured.assumptions if each not in gone]
        captured.assumptions += [condition for condition in after if condition not in before]

    def _keep_the_samples(self, name: str, size: int, guard: Guard) -> None:
        """The example has the size, for which the general program is not right."""
        attempt = self.done.attempt
        if name not in attempt.request.optional:
            raise undeclared(self.done.shape_env, guard.relation, guard.where)
        self.done = self.capture(attempt.specialized(Specialization(Dim.symbol(name), size, guard.where)))

    def _join(self, other: Recorded, at: dict[str, int], guard: Guard) -> bool:
        """Both programs in one; whether that is possible."""
        if self.done.attempt.request.untranslated is not None:
            return False
        one, two = self.done.captured, other.captured
        tests = [Relation("ne", (Dim.symbol(name), size)) for name, size in sorted(at.items())]
        test = functools.reduce(lambda one, two: Relation("or", (one, two)), tests)
        calls, weights = common_calls(one, two), common_weights(one, two)
        error = undeclared(self.done.shape_env, guard.relation, guard.where)
        decisions = [Decision(test, holds, True, calls, weights, error, dict(one.sizes)) for holds in (True, False)]
        general = Path(one, self.done.shape_env, decisions[:1])
        single = Path(replace(two, sizes={**two.sizes, **at}), other.shape_env, decisions[1:])
        try:
            joined = Merge(general, single, 0, error, at).path()
        except UserError as refusal:
            drop_frames(refusal)
            return False
        joined.captured.assumptions = [
            each
            for each in joined.captured.assumptions
            if not (isinstance(each, Specialization) and each in two.assumptions)
        ]
        self.done = Recorded(self.done.attempt, joined.captured, joined.shape_env)
        return True


def _is_possible(small: SmallSizes) -> bool:
    """Return True if each size is set to one number only."""
    return len(dict(small)) == len(small)


def _needs_no_more(env: ShapeEnv, general: ShapeEnv, names: Set[str]) -> bool:
    """True if a run takes nothing for granted that the general one does not."""
    if not env.specializations.keys() <= general.specializations.keys():
        return False
    equal = {
        key for key, guard in env.guards.items() if guard.relation.op == "eq" and not guard.relation.symbols() & names
    }
    equal |= {key for key, guard in env.guards.items() if guard.relation.op == "eq" and not guard.by_user}
    return equal <= general.guards.keys() and all(
        general.facts.sets.get(name, EVERY).is_within(sizes)
        for name, sizes in env.facts.sets.items()
        if name not in general.unbacked
    )


def _new_symbols(captured: Captured, calls: int) -> set[str]:
    """Sizes that calls after the first ones give, those within branches among them."""
    first = {node for node in captured.graph.nodes if node.op != "call_function"}
    first |= set([node for node in captured.graph.nodes if node.op == "call_function"][:calls])
    return {name for name, symbol in captured.symbols.items() if symbol.node not in first}


def _of_any_size(done: Recorded, general: Captured) -> Recorded:
    """The program with inputs that are reshaped to their sizes first, which their types in the general program do not state."""
    captured = done.captured
    for graph_input, like in zip(captured.inputs, general.inputs, strict=True):
        node, info = graph_input.node, graph_input.node.meta["val"]
        if info.dims == like.node.meta["val"].dims:
            continue
        with captured.graph.inserting_after(node):
            view = captured.graph.call_function(torch.ops.aten.view.default, (node, list(info.dims)))
        view.meta = {"val": TensorInfo(info.dtype, info.dims), "where": None, "module": ""}
        for user in [user for user in node.users if user is not view]:
            user.replace_input_with(node, view)
        for output in captured.outputs:
            output.value = view if output.value is node else output.value
        for nested in _nested_in(captured.graph):
            nested.outputs = [view if output is node else output for output in nested.outputs]
    return done


def _nested_in(graph: torch.fx.Graph) -> Iterator[Nested]:
    for nested in (arg for node in graph.nodes for arg in node.args if isinstance(arg, Nested)):
        yield nested
        yield from _nested_in(nested.graph)


def note_if_they_decide(done: Recorded, run: Callable[[Attempt], Outcome]) -> None:
    """Add a warning to ``done`` where forward computes something else once its texts of sizes are as in eager PyTorch."""
    attempt = done.attempt.without_baselines()
    sizes = replace(attempt.sizes, has_texts_of_sample=True)
    other = run(replace(attempt, sizes=sizes, change="texts of sizes are the sample's"))
    if isinstance(other, Recorded):
        if equivalent_at(done.captured, other.captured, {}):
            return
    else:
        drop_frames(other.error)
    lines = ", ".join(str(line) for line in done.shape_env.texts if line is not None) or "forward"
    done.captured.warnings.append(
        f"the text of a dynamic size, or of a number from data, decides what forward computes ({lines}): the file holds what it"
        " does for a text that is no number; compare the number itself, or leave the size out of dynamic_shapes"
    )
