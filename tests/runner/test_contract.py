"""The kernel contract, attacked with every step of every backend case and of cases for the kernels that they leave out.

Inputs are read-only and survive unchanged; ``into`` kernels write all of an output that holds poison, also where it is an
input that they may overwrite; ``alloc`` kernels share no memory with their inputs; nothing keeps an array after the call;
the same inputs give the same bits; a prepared callable gives what the plain kernel gives, with poisoned scratch.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import pkgutil
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from kernel_cases import CASES, fused_convolution, gradient, scaled_product, sequences
from overlaps import overlaps
from test_backend_cases import cases, data_sets
from test_ml import MAKERS

import fx2onnx.runner as ort
from fx2onnx.runner.arena import Buffer, assign_offsets
from fx2onnx.runner.execute import Executor
from fx2onnx.runner.plan import Plan
from fx2onnx.runner.trace import Trace
from fx2onnx.semantics import kernels
from fx2onnx.semantics.kernels import contrib
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import Calls, Facts, Prepared, all_kernels, outputs_of, run_all
from fx2onnx.semantics.schemas import STANDARD_DOMAINS
from fx2onnx.semantics.types import as_value

BATCHES = 8
POISONS = (0x00, 0xA5, 0xFF)


def bits(value: Any) -> Any:
    if isinstance(value, list):
        return [bits(item) for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
        return repr(value)
    return value.dtype, value.shape, np.ascontiguousarray(value).tobytes()


def poisoned(shape: tuple[int, ...], dtype: Any, poison: int) -> np.ndarray:
    return np.full(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, poison, np.uint8).view(dtype).reshape(shape)


def locked(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return copy


def check_fresh(results: list[Any], given: list[Any]) -> None:
    for result in results:
        for arg in given:
            if isinstance(result, np.ndarray) and isinstance(arg, np.ndarray):
                assert not np.may_share_memory(result, arg), "an alloc kernel returned its input"


def check_bound(fn: Any, outs: list[Any], changing: list[Any], fixed: list[Any], attrs: Any) -> None:
    """Calls that are bound before there is anything in their operands give what the function gives of it afterwards."""
    for is_dense in (True, False):
        memory = [None if arg is None else memory_like(arg, is_dense) for arg in changing]
        calls = fn.bind(outs, *memory, *fixed, **attrs)
        for place, arg in zip(memory, changing, strict=True):
            if arg is not None:
                np.copyto(place, arg)
        run_all(calls)
        given = bits(outs)
        fn(outs, *memory, *fixed, **attrs)
        assert given == bits(outs), "what is bound has read its operands"


def memory_like(arg: np.ndarray, is_dense: bool) -> np.ndarray:
    if arg.dtype.hasobject:
        return np.empty_like(arg)
    return poisoned(arg.shape, arg.dtype, 0xA5) if is_dense else poisoned(arg.shape[::-1], arg.dtype, 0xA5).T


class Attacker(Executor):
    """An executor that attacks each step before it trusts it."""

    def compute(self, step: Step, args: list[Any], observer: Any = None, trace: Any = None) -> list[Any]:
        try:
            return self.attack(step, args, observer)
        except AssertionError as error:
            raise RuntimeError(f"{step.op_type}-{step.kernel.since}: {error}") from error

    def attack(self, step: Step, args: list[Any], observer: Any = None) -> list[Any]:
        if step.bodies:
            return super().compute(step, args, observer)
        kernel, attrs = step.kernel, step.attrs
        given = [locked(arg) for arg in args]
        before = bits(given)
        if kernel.infer is not None:
            results = self.attack_into(step, given)
        else:
            results = [as_value(result) for result in outputs_of(kernel.fn(*given, **attrs))]
            if kernel.kind == "alloc":
                check_fresh(results, given)
            if not kernel.is_random:
                again = [as_value(result) for result in outputs_of(kernel.fn(*given, **attrs))]
                assert bits(again) == bits(results), "two calls differ"
        assert bits(given) == before, "an input was written"
        if kernel.kind != "view":
            watched = [weakref.ref(arg) for arg in given if isinstance(arg, np.ndarray)]
            del given
            if any(ref() is not None for ref in watched):
                gc.collect()
                assert all(ref() is None for ref in watched), "an input survived the call"
        return results

    def attack_into(self, step: Step, given: list[Any]) -> list[Any]:
        kernel, attrs = step.kernel, step.attrs
        assert kernel.infer is not None
        specs = kernel.infer(given, attrs)
        runs = []
        for poison in POISONS:
            out = [poisoned(shape, dtype, poison) for shape, dtype in specs]
            kernel.fn(out, *given, **attrs)
            runs.append(out)
        assert bits(runs[0]) == bits(runs[1]) == bits(runs[2]), "part of an output was not written"
        for place in kernel.inplace:
            if place < len(given) and given[place] is not None and (given[place].shape, given[place].dtype) == specs[0]:
                shared = given[place].copy()
                out = [shared, *(poisoned(shape, dtype, 0xA5) for shape, dtype in specs[1:])]
                kernel.fn(out, *[shared if i == place else arg for i, arg in enumerate(given)], **attrs)
                assert bits(out) == bits(runs[0]), f"overwriting input {place} changes the result"
                ATTACKED_INPLACE.add((kernel.op_type, place))
        if isinstance(kernel.fn, Calls):
            check_bound(kernel.fn, [o.copy() for o in runs[0]], given, [], attrs)
        if kernel.prepare is not None:
            self.attack_prepared(step, given, runs[0])
        return runs[0]

    def attack_prepared(self, step: Step, given: list[Any], wanted: list[Any]) -> None:
        assert step.kernel.prepare is not None
        specs = [None if arg is None else (arg.shape, arg.dtype) for arg in given]
        outputs = [(w.shape, w.dtype) for w in wanted]
        for wants_channels_last in (False, True):
            facts = Facts(specs, [None, *given[1:]], outputs, [False] * len(given), step.attrs, {}, wants_channels_last)
            prepared = step.kernel.prepare(facts)
            if prepared is not None:
                self.attack_call(prepared, given, wanted)

    def attack_call(self, prepared: Prepared, given: list[Any], wanted: list[Any]) -> None:
        runs = []
        for poison in POISONS:
            out = [poisoned(w.shape, w.dtype, poison) for w in wanted]
            if prepared.channels_last:
                out = [np.ascontiguousarray(o.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for o in out]
            scratch = [poisoned(shape, dtype, poison) for shape, dtype in prepared.scratch]
            prepared.fn(out, scratch, *given)
            runs.append(out)
        assert bits(runs[0]) == bits(runs[1]) == bits(runs[2]), "the result depends on garbage"
        for one, other in zip(runs[0], wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        if isinstance(prepared.fn, Calls):
            bind = Calls(lambda outs, x, *rest: prepared.fn.bind(outs, scratch, x, *rest))  # type: ignore[attr-defined]
            check_bound(bind, out, given[:1], given[1:], {})


ATTACKED_INPLACE: set[tuple[str, int]] = set()


def attack(model: Any, feed_sets: list[dict[str, Any]], level: ort.GraphOptimizationLevel) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    session = ort.InferenceSession(model, options)
    attacker = Attacker(session.program)
    for feeds in feed_sets:
        with np.errstate(all="ignore"):
            attacker.interpret(session.check_feeds(feeds))


PLAIN = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
Attacked = tuple[str, Any, list[dict[str, Any]], ort.GraphOptimizationLevel]


def own_cases() -> Iterator[Attacked]:
    """What the backend has no case of."""
    for case in CASES:
        model, feeds = case.model()
        yield f"{case.op_type}-{case.opset}", model, [feeds], PLAIN
    for make in (sequences, gradient):
        model, feeds = make()
        yield make.__name__, model, [feeds], PLAIN
    model, feeds = fused_convolution()
    yield "fused_convolution", model, [feeds], ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    model, feeds = scaled_product()
    yield "scaled_product", model, [feeds], ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for maker in MAKERS:
        for seed in range(6):
            model, feeds = maker(np.random.default_rng(seed))
            yield f"{maker.__name__}-{seed}", model, [feeds], PLAIN


def backend_cases() -> Iterator[Attacked]:
    for name, case in cases().items():
        if case.model is not None:
            names = [info.name for info in case.model.graph.input]
            sets = [dict(zip(names, inputs, strict=False)) for inputs, _ in data_sets(case, case.model)]
            yield name, case.model, sets, PLAIN


@pytest.mark.long_cases(but=["1", "3", "5"])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_contract(batch: int) -> None:
    failures = []
    for name, model, feed_sets, level in list(itertools.chain(backend_cases(), own_cases()))[batch::BATCHES]:
        try:
            attack(model, feed_sets, level)
        except RuntimeError as error:
            failures.append(f"{name}: {str(error).splitlines()[0]}")
    assert failures == []


NOT_ATTACKED = {
    ("", "Constant", 1): "its value is a slot; there is no step",
    ("", "If", 1): "calls its bodies, whose steps are attacked",
    ("", "Loop", 1): "calls its bodies, whose steps are attacked",
    ("", "Scan", 8): "calls its bodies, whose steps are attacked",
    ("", "Scan", 9): "calls its bodies, whose steps are attacked",
    ("", "SequenceMap", 17): "calls its bodies, whose steps are attacked",
    **{
        ("", op_type, 1): "onnxruntime's own: test_contrib*.py compare them"
        for (domain, _), op_types in contrib.FAMILIES.items()
        if not domain
        for op_type in op_types.split()
    },
    ("fx2onnx", "ProjectedAttention", 1): "onnxruntime's QAttention without its product",
    ("ai.onnx.ml", "CastMap", 1): "takes a dictionary and gives a new array: nothing to overwrite or share",
    ("ai.onnx.ml", "DictVectorizer", 1): "takes a dictionary and gives a new array: nothing to overwrite or share",
    ("ai.onnx.ml", "LabelEncoder", 1): "strings to numbers: nothing to overwrite or share",
    ("ai.onnx.ml", "ZipMap", 1): "gives dictionaries: nothing to overwrite or share",
}
"""Kernels that the batches above do not call, each with the reason."""


def proto_of(model: Any) -> onnx.ModelProto:
    return onnx.load_from_string(model) if isinstance(model, bytes) else model


def kernels_of(program: Program) -> Iterator[Any]:
    for step in program.steps:
        if not step.bodies:
            yield step.kernel
        for body in step.bodies.values():
            yield from kernels_of(body)


@pytest.mark.long
def test_every_kernel_is_attacked() -> None:
    """By what the cases' programs call; so this holds however the batches are spread over processes."""
    called: set[tuple[str, str, int]] = set()
    for _, model, _, level in itertools.chain(backend_cases(), own_cases()):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        program = ort.InferenceSession(model, options).program
        called.update((k.domain, k.op_type, k.since) for k in kernels_of(program))
    registered = {(k.domain, k.op_type, k.since) for k in all_kernels() if k.domain in (*STANDARD_DOMAINS, "fx2onnx")}
    assert registered - called == set(NOT_ATTACKED)


def test_in_place_kernels_are_attacked() -> None:
    """Every promise of ``inplace`` is tried. What no batch in this process tried yet is attacked here."""
    promised = {(k.op_type, place) for k in all_kernels() if k.domain == "" for place in k.inplace}
    for _, model, feed_sets, level in itertools.chain(backend_cases(), own_cases()):
        left = {op_type for op_type, _ in promised - ATTACKED_INPLACE}
        if not left:
            break
        if left & {node.op_type for node in proto_of(model).graph.node}:
            with contextlib.suppress(RuntimeError):  # what an attack finds is test_contract's to tell
                attack(model, feed_sets, level)
    assert promised - ATTACKED_INPLACE == set()


@pytest.mark.long
def test_planner_is_checked_by_other_code() -> None:
    """Plans of all node cases: no two live buffers share a byte."""
    for name in list(cases())[::7]:
        case = cases()[name]
        if case.model is None:
            continue
        session = ort.InferenceSession(case.model)
        for inputs, _ in data_sets(case, case.model):
            feeds = dict(zip([info.name for info in case.model.graph.input], inputs, strict=False))
            for _ in range(2):
                session.run(None, feeds)
        for plan in session.executor.plans.values():
            if isinstance(plan, Plan):
                assert overlaps(plan.buffers) == []


def test_checker_finds_a_clash() -> None:
    good = [Buffer(100, 0, 3), Buffer(50, 2, 5), Buffer(100, 4, 6)]
    assert assign_offsets(good) >= 150
    assert overlaps(good) == []
    good[1].offset = good[0].offset
    assert (0, 1) in overlaps(good)


def test_trace_folds_shape_arithmetic() -> None:
    """A Reshape by a computed shape is a view in the plan, and its shape arithmetic is gone."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Concat", ["n", "minus"], ["t"], axis=0),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "t"], ["v"]),
        helper.make_node("Neg", ["v"], ["y"]),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("minus", TensorProto.INT64, [1], [-1]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b"]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(3):
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, -x.reshape(3, 2))
    (plan,) = session.executor.plans.values()
    assert [action.step.op_type for action in plan.actions] == ["Relu", "Reshape", "Neg"]
    assert isinstance(plan.trace, Trace)


def test_each_operator_names_the_file_of_its_kernels() -> None:
    """A file is imported when a model first has an operator that names it."""
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    named, of_onnxruntime = (
        {
            (domain, op_type): f"{package.__name__}.{file}"
            for (domain, file), op_types in package.FAMILIES.items()
            for op_type in op_types.split()
        }
        for package in (kernels, contrib)
    )
    assert named == {
        (k.domain, k.op_type): k.fn.__module__
        for k in all_kernels()
        if k.domain in (*STANDARD_DOMAINS, "fx2onnx") and (k.domain, k.op_type) not in of_onnxruntime
    }


@pytest.mark.parametrize(
    "operands", [("Where", "c", "a", "a"), ("PRelu", "a", "a"), ("Sub", "a", "a"), ("Pow", "a", "a")]
)
def test_one_value_as_two_operands_is_not_overwritten(operands: tuple[str, ...]) -> None:
    """From the second run on memory is planned, and ``Where`` writes before it has read both operands."""
    op_type, *names = operands
    nodes = [
        onnx.helper.make_node("Abs", ["x"], ["a"]),
        onnx.helper.make_node(op_type, names, ["y"]),
        onnx.helper.make_node("Neg", ["y"], ["z"]),
    ]
    value = onnx.helper.make_tensor_value_info
    inputs = [value("x", 1, [2, 3]), value("c", 9, [2, 3])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [value("z", 1, [2, 3])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString())
    x, c = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5, np.eye(2, 3) > 0
    first, *later = (session.run(None, {"x": x, "c": c})[0] for _ in range(3))
    for each in later:
        np.testing.assert_array_equal(each, first)
