"""The attempt after a failed one: the first remedy of an ordered table that applies makes it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace

from fx2onnx.base.errors import UserError
from fx2onnx.capture.attempt import Attempt, Baked, Enlarged, Failed, Outcome, Recorded, RunProgram, own_run_failed
from fx2onnx.capture.failures import export_may_help
from fx2onnx.capture.options import BAKE_AUTO
from fx2onnx.capture.python.file_names import may_keep_number, names_numpy, names_of_file
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.reasons import NUMBERS, Reason
from fx2onnx.capture.settle import after_run, may_have_arrays, numbers_stay_sizes, settled, with_arrays, with_loops
from fx2onnx.capture.shapes.dynamic import hints_of
from fx2onnx.sizes.assumptions import Specialization
from fx2onnx.sizes.expr import Dim


@dataclass(frozen=True)
class Remedy:
    """One way to go on after a failure."""

    name: str
    needs: tuple[Reason, ...]
    """The reasons of failures that it is for; none: for any."""
    applies: Callable[[Failed], bool]
    change: Callable[[Failed, Attempt], Attempt | Outcome]
    """The next attempt for a failure and the first attempt of all, or an outcome to take in the place of the failure."""

    def is_for(self, failed: Failed) -> bool:
        return (not self.needs or failed.reason in self.needs) and self.applies(failed)


def after_failure(failed: Failed, start: Attempt) -> Attempt | Outcome:
    """The next attempt after all since ``start``; an outcome where no remedy is left."""
    failed = _with_plain_numbers(failed)
    remedy = next((remedy for remedy in REMEDIES if remedy.is_for(failed)), None)
    following = failed if remedy is None else remedy.change(failed, start)
    if isinstance(following, Failed) and BAKE_INPUTS.is_for(following):
        return BAKE_INPUTS.change(following, start)
    return following


def _with_plain_numbers(failed: Failed) -> Failed:
    """The failure with what failed where ``int(x)`` is a plain number, in the place of an error that may be due to
    its being none.
    """
    first, error = failed.attempt.numbers.failure, failed.error
    is_of_run = failed.reason in _ABOUT_THE_RUN
    if first is None or is_of_run or (isinstance(error, UserError) and error.code != "E101"):
        return failed
    return replace(failed, error=first.error, reason=first.reason)


MOST_BRANCHES = 4
"""Places of decisions around which loops of a fixed length are loops of the file: each is an attempt of its own."""
_ABOUT_THE_RUN = (Reason.COMPOSITE, Reason.WRITTEN, Reason.NO_BRANCH, Reason.GRADIENTS, Reason.INDEX)


def _always(_: Failed) -> bool:
    return True


def _is_own_run(failed: Failed) -> bool:
    return failed.attempt.is_own_run


def _may_keep_number_of_data(failed: Failed) -> bool:
    numbers, where = failed.attempt.numbers, getattr(failed.error, "where", None)
    is_new = bool(names_of_file(where) - numbers.files) if may_keep_number(where) else False
    return is_new and failed.attempt.is_own_run and numbers.may_add_files


def _keeping_number_of_data(failed: Failed, _: Attempt) -> Attempt:
    attempt, numbers = failed.attempt, failed.attempt.numbers
    files = numbers.files | names_of_file(getattr(failed.error, "where", None))
    change = "int(x), float(x) and y[:x] of a number that only the data tells take that number"
    return replace(attempt, numbers=replace(numbers, files=files, failure=numbers.failure or failed), change=change)


def _with_indices(failed: Failed, _: Attempt) -> Attempt:
    attempt = failed.attempt
    return replace(
        attempt, numbers=replace(attempt.numbers, takes_indices=True), change="tensors are indexed with sizes"
    )


def _made_numbers_before(failed: Failed) -> bool:
    attempt = failed.attempt
    is_new = bool(failed.numbers_in - attempt.numbers.files)
    return is_new and attempt.numbers.may_add_files and attempt.program.strategy == "fake"


def _keeping_sizes(failed: Failed, _: Attempt) -> Attempt:
    return numbers_stay_sizes(failed.attempt, failed.numbers_in)


def _back_to_numbers(failed: Failed, _: Attempt) -> Attempt | Outcome:
    done = failed.attempt.numbers.baseline
    assert done is not None
    numbers = replace(done.attempt.numbers, may_add_files=False)
    return after_run(replace(done, attempt=replace(done.attempt, numbers=numbers)))


def _numbers_may_be_pythons(failed: Failed) -> bool:
    numbers = failed.attempt.numbers
    can_be = bool(numbers.files) and numbers.may_add_files and numbers.failure is None
    return can_be and not (failed.sizes and _must_be_declared(failed))


def _with_pythons_numbers(failed: Failed, start: Attempt) -> Attempt:
    numbers = replace(start.numbers, may_add_files=False)
    sizes = replace(start.sizes, stand_in=failed.attempt.sizes.stand_in)  # else that of before would be tried again
    return replace(start, numbers=numbers, sizes=sizes, change="int and float are Python's own").at_sample()


def _with_parts(failed: Failed, _: Attempt) -> Attempt:
    operators = replace(failed.attempt.operators, pre_dispatch=False)
    change = "composite operators are recorded by what they consist of"
    return replace(failed.attempt, operators=operators, change=change)


def _with_gradients(failed: Failed, _: Attempt) -> Attempt:
    operators = replace(failed.attempt.operators, gradients=True)
    return replace(failed.attempt, operators=operators, change="gradients are on, since forward takes some")


def _is_decided_in_library(failed: Failed) -> bool:
    return failed.library_code is not None


def _with_traced_code(failed: Failed, _: Attempt) -> Attempt:
    code, operators = failed.library_code, failed.attempt.operators
    assert code is not None
    change = f"{code.co_qualname} takes its branch for traced code"
    return replace(failed.attempt, operators=replace(operators, traced=operators.traced | {code}), change=change)


def _has_code_for_compilers(failed: Failed) -> bool:
    """True if the file that decides by sizes or data asks ``torch.compiler.is_compiling()`` somewhere."""
    error, is_asked = failed.error, failed.attempt.operators.compiling is not None
    where = error.where if isinstance(error, UserError) and error.code in ("E104", "E105") else None
    if where is None or is_asked or not _is_own_run(failed):
        return False
    return any("is_compiling" in line for line in linecache.getlines(where.file))


def _as_compiled(failed: Failed, start: Attempt) -> Attempt:
    where = getattr(failed.error, "where", None)
    return replace(
        start, operators=replace(start.operators, compiling=where), change="torch.compiler.is_compiling() is true"
    )


def _without_noop_guards(failed: Failed, _: Attempt) -> Attempt:
    branching = replace(failed.attempt.branching, has_noop_guards=False)
    return replace(failed.attempt, branching=branching, change="every test is a decision")


def _without_bodies(failed: Failed, _: Attempt) -> Attempt:
    branching = replace(failed.attempt.branching, has_bodies=False)
    return replace(failed.attempt, branching=branching, change=f"every test by data is a decision: {failed.error}")


def _needs_loops(failed: Failed) -> bool:
    """True if Python goes through as many elements as data says, and loops of the file were not tried, or not those that it leaves."""
    branching = failed.attempt.branching
    is_untried = not branching.has_loops
    if failed.reason is Reason.PATHS:
        is_new = getattr(failed.error, "where", None) not in branching.branches
        is_untried |= is_new and len(branching.branches) < MOST_BRANCHES
    is_untried = is_untried and branching.loop_failure is None
    return is_untried and failed.attempt.is_own_run and failed.attempt.operators.pre_dispatch


def _with_loops(failed: Failed, _: Attempt) -> Attempt:
    following, where = with_loops(failed, has_exits=failed.reason is Reason.PATHS), getattr(failed.error, "where", None)
    if failed.reason is not Reason.TURNS or getattr(failed.error, "code", "") != "E105":
        return following
    numbers = following.numbers  # a library's file finds enumerate and the like of a run with loops only if it is named
    return replace(following, numbers=replace(numbers, files=numbers.files | names_of_file(where)))


def _needs_loops_after_turns(failed: Failed) -> bool:
    return failed.has_turns and _needs_loops(failed)


def _with_joined_branches(failed: Failed, _: Attempt) -> Attempt:
    branching = replace(failed.attempt.branching, joins_branches=True, has_bodies=True)
    return replace(failed.attempt, branching=branching, change="both ways of each branch in a turn are run in turn")


def _with_first_turn(failed: Failed, _: Attempt) -> Attempt:
    branching, where = failed.attempt.branching, getattr(failed.error, "where", None)
    branching = replace(branching, first_turns=branching.first_turns | {where})
    return replace(failed.attempt, branching=branching, change=str(failed.error))


def _has_no_loops(failed: Failed) -> bool:
    return failed.attempt.branching.unrolled is not None


def _unrolled(failed: Failed, start: Attempt) -> Attempt | Outcome:
    """The result of a run without loops of the file."""
    done = failed.attempt.branching.unrolled
    assert done is not None
    branching = replace(done.attempt.branching, loop_failure=failed.error)
    done = replace(done, attempt=replace(done.attempt, branching=branching))
    if isinstance(done, Recorded):
        return settled(done)
    if isinstance(done.error, UserError) and getattr(failed.error, "code", "") != "E101":
        specializing = road("sizes that not every number fits")
        since = specializing.no_loop_since(failed.error)
        done.error.why += since
        steps = specializing.steps_since(failed.error) if since else ()
        done.error.add_next(steps[-1:], before=steps[:-1])
    return after_failure(done, start)


def _may_go_one_way(failed: Failed) -> bool:
    return bool(failed.sizes) and failed.attempt.branching.by_sizes and not _must_be_declared(failed)


def _with_samples_branches(failed: Failed, _: Attempt) -> Attempt:
    branching = replace(failed.attempt.branching, by_sizes=False, failure=failed.error)
    change = "Python decides by sizes as it does at the sample's"
    return replace(failed.attempt, branching=branching, change=change)


def _must_be_declared(failed: Failed) -> bool:
    """True if a size that is asked for by name has to get a range: the file cannot have both branches."""
    error = failed.error
    return isinstance(error, UserError) and error.code == "E105" and not failed.sizes <= failed.attempt.request.optional


def _fails_enlarged(failed: Failed) -> bool:
    return failed.attempt.enlarged.baseline is not None and isinstance(failed.error, UserError)


def _back_to_sample(failed: Failed, _: Attempt) -> Attempt | Outcome:
    done = failed.attempt.enlarged.baseline
    assert done is not None
    return settled(done)


_STAND_INS = {2: 3, 3: 8}
"""The size to try next in the place of a sample's size of 0 or 1, where the module takes no such size."""


def _fails_at_stand_in(failed: Failed) -> bool:
    """True if the module failed where another size stands for a sample's size of 0 or 1."""
    attempt, error = failed.attempt, failed.error
    is_of_forward = isinstance(error, UserError) and error.code == "E101" and attempt.sizes.stand_in in _STAND_INS
    return is_of_forward and any(size < 2 for size in hints_of(attempt.arguments).values())


def _with_other_stand_in(failed: Failed, start: Attempt) -> Attempt:
    other = _STAND_INS[failed.attempt.sizes.stand_in]
    change = f"with sizes of {other} in the place of 0 and 1"
    return replace(start, sizes=replace(start.sizes, stand_in=other), change=change).at_sample()


def _fixed_at_sample(failed: Failed) -> Specialization | None:
    """A size nobody asked for by name that is 0 or 1 in the example inputs, and that no larger one may take the place
    of."""
    attempt, error = failed.attempt, failed.error
    if not isinstance(error, UserError) or error.code != "E101":
        return None
    sizes = hints_of(attempt.arguments)
    small = sorted(name for name in attempt.request.optional if sizes.get(name, 2) < 2)
    asked = [name for relation in failed.unmet for name in small if name in relation.symbols()]
    name = next(iter(asked or small), None)
    return None if name is None else Specialization(Dim.symbol(name), sizes[name], error.where)


def _may_be_fixed(failed: Failed) -> bool:
    return _fixed_at_sample(failed) is not None


def _with_fixed_size(failed: Failed, _: Attempt) -> Attempt:
    fixed = _fixed_at_sample(failed)
    assert fixed is not None
    return failed.attempt.specialized(fixed)


def _stands_for_own_run(failed: Failed) -> bool:
    return failed.attempt.program.own_failure is not None


def _back_to_own_failure(failed: Failed, _: Attempt) -> Failed:
    failure = failed.attempt.program.own_failure
    assert failure is not None
    return Failed(failed.attempt, failure)


def _export_may_help(failed: Failed) -> bool:
    return failed.attempt.options.strategy == "auto" and export_may_help(failed)


def _with_export(failed: Failed, start: Attempt) -> Attempt:
    program = RunProgram("export", own_failure=failed.error)
    return replace(start, program=program, change=own_run_failed(failed.error))


def _unbaked(failed: Failed) -> list[str]:
    """The inputs whose numbers Python needs."""
    names = failed.error.inputs if isinstance(failed.error, UserError) else ()
    return [name for name in names if name not in failed.attempt.baked.names]


def _may_bake(failed: Failed) -> bool:
    """True if the choice of constant inputs is left to the capture, and none of them has dynamic sizes."""
    more, leaves = _unbaked(failed), {leaf.name: leaf for leaf in failed.attempt.arguments.leaves}
    return failed.attempt.options.bake == BAKE_AUTO and bool(more) and not any(leaves[name].axes for name in more)


def _with_baked_inputs(failed: Failed, _: Attempt) -> Attempt:
    attempt, error, more = failed.attempt, failed.error, _unbaked(failed)
    assert isinstance(error, UserError)
    where = f"   ({error.where})" if error.where else ""
    lines = [f"{name} is fixed to the sample's values: {error.what}; {error.why}{where}" for name in more]
    strategy = "fake" if attempt.options.strategy == "auto" else attempt.program.strategy
    return replace(
        attempt,
        baked=Baked((*attempt.baked.names, *more), (*attempt.baked.lines, *lines)),
        program=RunProgram(strategy),
        branching=replace(attempt.branching, by_sizes=True),
        enlarged=Enlarged(),
        change=f"with the sample's values of {', '.join(more)}",
    ).at_sample()


def _makes_array(failed: Failed) -> bool:
    is_numpys = failed.reason is Reason.ARRAY or names_numpy(getattr(failed.error, "where", None))
    return is_numpys and may_have_arrays(failed.attempt)


def _with_arrays(failed: Failed, _: Attempt) -> Attempt:
    return with_arrays(failed, getattr(failed.error, "where", None))


def _has_arrays(failed: Failed) -> bool:
    return failed.attempt.numbers.has_arrays and failed.attempt.is_own_run


def _without_arrays(failed: Failed, start: Attempt) -> Attempt | Outcome:
    before = failed.attempt.numbers.without_arrays
    assert before is not None
    numbers = replace(before.attempt.numbers, without_arrays=before)
    before = replace(before, attempt=replace(before.attempt, numbers=numbers))
    if isinstance(before, Recorded):
        return after_run(before)
    if getattr(before.error, "code", "") == "E101" and getattr(failed.error, "code", "") == "E104":
        before = replace(before, error=failed.error)  # NumPy only failed at an object that it does not know
    return after_failure(before, start)


REMEDIES = (
    Remedy("NumPy's arrays are tensors", (), _makes_array, _with_arrays),
    Remedy("loops of the file", (Reason.TURNS, Reason.PATHS), _needs_loops, _with_loops),
    Remedy("branches joined in turns", (Reason.PATHS_OF_TURN,), _always, _with_joined_branches),
    Remedy("a first turn by itself", (Reason.FIRST_TURN,), _always, _with_first_turn),
    Remedy("numbers of data stay numbers of data", NUMBERS, _may_keep_number_of_data, _keeping_number_of_data),
    Remedy("sizes as indices", (Reason.INDEX,), _is_own_run, _with_indices),
    Remedy("composite operators by their parts", (Reason.COMPOSITE,), _always, _with_parts),
    Remedy("every test is a decision", (Reason.WRITTEN,), _always, _without_noop_guards),
    Remedy("every test by data is a decision", (Reason.NO_BRANCH,), _always, _without_bodies),
    Remedy("gradients on", (Reason.GRADIENTS,), _always, _with_gradients),
    Remedy("a library's branch for traced code", (), _is_decided_in_library, _with_traced_code),
    Remedy("code for torch.compile", (), _has_code_for_compilers, _as_compiled),
    Remedy("int and float of sizes stay sizes", (), _made_numbers_before, _keeping_sizes),
    Remedy("loops of the file behind turns by size", (), _needs_loops_after_turns, _with_loops),
    Remedy("loops as often as at the sample", (), _has_no_loops, _unrolled),
    Remedy("the sample's branches", (), _may_go_one_way, _with_samples_branches),
    Remedy("back to the sample's sizes", (), _fails_enlarged, _back_to_sample),
    Remedy("NumPy's own arrays", (), _has_arrays, _without_arrays),
    Remedy("back to plain numbers", (), lambda failed: failed.attempt.numbers.baseline is not None, _back_to_numbers),
    Remedy("back to the own run's failure", (), _stands_for_own_run, _back_to_own_failure),
    Remedy("int and float are Python's own", (), _numbers_may_be_pythons, _with_pythons_numbers),
    Remedy("another size for 0 and 1", (), _fails_at_stand_in, _with_other_stand_in),
    Remedy("a size fixed at the sample", (), _may_be_fixed, _with_fixed_size),
    Remedy("torch.export", (), _export_may_help, _with_export),
)
"""The remedies, in the order in which they are tried."""
BAKE_INPUTS = Remedy("inputs as constants", (), _may_bake, _with_baked_inputs)
"""The last one, also for a failure that another remedy came back to."""
