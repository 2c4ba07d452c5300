"""``python -m benchmarks.planted [--models a,b] [--each N] [--write docs/planted.md]``: plant faults in each stage of the
exporter and of the runner, and ask ``locate`` which stage and which code is at fault.

A fault is planted while the model is exported and debugged: in what capture gives, in the function that translates one
overload, in the result of one rewrite, in the runner's kernel of one operator. It counts where a user can see it: an
output of the sample differs from eager PyTorch's by more than a thousandth of the largest number of its row.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.sabotage.__main__ import differs
from benchmarks.sabotage.architectures import ARCHITECTURES, Architecture

STAGES = ("capture", "translation", "rewrite", "engine")
Row = dict[str, Any]


@dataclass(frozen=True)
class Plant:
    """A fault: where, how, and the context in which it is there. ``blamed`` stands in what has to be blamed."""

    what: str
    how: str
    blamed: str
    planted: Callable[[], contextlib.AbstractContextManager[Any]]


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda op, value: op.Mul(value, op.const(np.asarray(1.25), value.dtype)),
    "negated": lambda op, value: op.Neg(value),
    "shifted": lambda op, value: op.Add(value, op.const(np.asarray(0.5), value.dtype)),
    "small numbers lost": lambda op, value: op.Relu(value),
}
"""What becomes of a result of floats, in ONNX."""
IN_NUMPY: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda array: array * array.dtype.type(1.25),
    "negated": lambda array: -array,
    "shifted": lambda array: array + array.dtype.type(0.5),
    "small numbers lost": lambda array: np.maximum(array, 0),
    "last axis turned": lambda array: np.flip(array, -1) if array.ndim else array,
}


OTHER = "other argument"
"""What becomes of an argument of a translation, and of an attribute of a kernel or of what a rewrite makes."""


def _other(value: Any) -> Any:
    """Another number for a number, a list in another order; None for what has no other."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 if value > 0 else value + 1
    if isinstance(value, float):
        return value * 1.5 + 0.25
    is_list = isinstance(value, list | tuple) and all(isinstance(each, int) for each in value)
    return type(value)(value[::-1]) if is_list and list(value) != list(value)[::-1] else None


def _with_another(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, the first that has another being that one."""
    for place, value in enumerate(args):
        if (other := _other(value)) is not None:
            return (*args[:place], other, *args[place + 1 :]), kwargs
    for name, value in kwargs.items():
        if (other := _other(value)) is not None and name not in ("n_outputs", "version"):
            return args, kwargs | {name: other}
    return args, kwargs


def _translated(function: Any, how: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What a translation with the fault emits."""
    if how != OTHER:
        return _changed(op, function(op, *args, **kwargs), how)
    args, kwargs = _with_another(args, kwargs)
    return function(op, *args, **kwargs)


def _rewritten(build: Any, how: str, self: Any, op: Any, match: Any) -> Any:
    """What a rewrite with the fault builds."""
    import onnx_ir as ir

    built = build(self, op, match)
    if how != OTHER:
        return _changed(op, built, how)
    first = built if isinstance(built, ir.Value) else next(iter(built))
    producer = first.producer()
    if producer is not None and producer in op.builder.nodes:
        for name, attribute in producer.attributes.items():
            value = attribute.value
            other = _other(list(value) if isinstance(value, tuple) else value)
            if other is not None:
                producer.attributes[name] = ir.convert_attribute(name, other)
                break
    return built


def _is_float(value: Any) -> bool:
    import onnx_ir as ir

    return isinstance(value, ir.Value) and value.dtype == ir.DataType.FLOAT


def _changed(op: Any, result: Any, how: str) -> Any:
    """The first float of the results changed."""
    several = isinstance(result, tuple | list)
    values = list(result) if several else [result]
    for place, value in enumerate(values):
        if _is_float(value):
            values[place] = CHANGES[how](op, value)
            break
    return type(result)(values) if several else values[0]


def translations(captured: Any, opset: int) -> Iterator[Plant]:
    """Of the overloads that the model calls."""
    from fx2onnx.aten_map import TABLE

    overloads = dict.fromkeys(node.target for node in captured.graph.nodes if node.op == "call_function")
    for overload in overloads:
        entry = TABLE.find(overload, opset)
        for how in (*CHANGES, OTHER) if entry is not None else ():
            wrong = functools.partial(_translated, entry.function, how)
            forms = [replace(entry, function=functools.update_wrapper(wrong, entry.function))]
            yield Plant(
                str(overload),
                how,
                str(overload),
                functools.partial(mock.patch.dict, TABLE.entries, {overload: forms}),
            )


def rewrites(edits: Sequence[str]) -> Iterator[Plant]:
    """Of the rewrites that edit the model."""
    from fx2onnx.optimize import pipelines

    stages = [stage for stage in pipelines.LEVELS[pipelines.DEFAULT_LEVEL] if isinstance(stage, pipelines.Rewrites)]
    classes = {item.name: type(item) for stage in stages for item in stage.rewrites}
    for name in edits:
        if name not in classes:
            continue
        for how in (*CHANGES, OTHER):
            wrong = _as_method(classes[name].build, how)
            yield Plant(name, how, name, functools.partial(mock.patch.object, classes[name], "build", wrong))


def _as_method(build: Any, how: str) -> Callable[..., Any]:
    return lambda self, op, match: _rewritten(build, how, self, op, match)


def kernels(op_types: Sequence[str]) -> Iterator[Plant]:
    """Of the operators that the file has."""
    from fx2onnx.runner import registry

    for op_type in op_types:
        versions = registry._table.get(("", op_type), {})
        if not versions or any(kernel.kind == "view" for kernel in versions.values()):
            continue
        for how in (*IN_NUMPY, OTHER):
            broken = {since: _broken(kernel, how) for since, kernel in versions.items()}
            yield Plant(op_type, how, op_type, functools.partial(_in_table, ("", op_type), broken))


def _broken(kernel: Any, how: str) -> Any:
    change = IN_NUMPY.get(how, lambda array: array)

    def other(*inputs: Any, **attributes: Any) -> Any:
        return kernel.fn(*inputs, **_with_another((), attributes)[1])

    def into(out: Any, *inputs: Any, **attributes: Any) -> Any:
        result = kernel.fn(out, *inputs, **attributes)
        target = out[0] if isinstance(out, list | tuple) else out
        if target.dtype == np.float32:
            target[...] = change(target)
        return result

    def alloc(*inputs: Any, **attributes: Any) -> Any:
        result = kernel.fn(*inputs, **attributes)
        first = result[0] if isinstance(result, tuple) else result
        if not isinstance(first, np.ndarray) or first.dtype != np.float32:
            return result
        return (change(first), *result[1:]) if isinstance(result, tuple) else change(first)

    wrong = other if how == OTHER else into if kernel.kind == "into" else alloc
    function = functools.wraps(kernel.fn)(wrong)
    return replace(kernel, fn=function, prepare=None, elementwise=False)


@contextlib.contextmanager
def _in_table(key: tuple[str, str], broken: dict[int, Any]) -> Iterator[None]:
    from fx2onnx.runner import registry

    with mock.patch.dict(registry._table, {key: broken}):
        registry._count_change()
        try:
            yield
        finally:
            registry._count_change()
    registry._count_change()


def captures(captured: Any) -> Iterator[Plant]:
    """Of single nodes of the graph: a number that becomes another, operands that change places, a step that is lost."""
    nodes = [node for node in captured.graph.nodes if node.op == "call_function"]
    for place, node in enumerate(nodes):
        for how, harm in HARMS.items():
            if harm(node, try_only=True):
                yield Plant(f"node {place} {node.target}", how, "", functools.partial(_captured_wrong, place, how))


def _numbers(node: Any, try_only: bool = False) -> bool:
    """A number among the arguments becomes another."""
    for place, value in enumerate(node.args):
        if isinstance(value, float) and not isinstance(value, bool):
            if not try_only:
                node.update_arg(place, value * 1.5 + 0.25)
            return True
    return False


def _swapped(node: Any, try_only: bool = False) -> bool:
    """The first two operands change places."""
    if len(node.args) < 2 or not all(isinstance(each, torch.fx.Node) for each in node.args[:2]):
        return False
    one, two = (each.meta.get("val") for each in node.args[:2])
    names = ("sub", "div", "mm", "bmm", "matmul", "pow", "atan2", "remainder")
    is_other = any(f"aten.{name}." in str(node.target) for name in names)
    if not is_other or str(one) != str(two) or node.args[0] is node.args[1]:
        return False
    if not try_only:
        node.args = (node.args[1], node.args[0], *node.args[2:])
    return True


def _lost(node: Any, try_only: bool = False) -> bool:
    """The node gives its first operand as it is."""
    first = next((each for each in node.args if isinstance(each, torch.fx.Node)), None)
    if first is None or str(first.meta.get("val")) != str(node.meta.get("val")) or "float" not in str(node.meta["val"]):
        return False
    if not try_only:
        node.replace_all_uses_with(first)
    return True


HARMS: dict[str, Callable[..., bool]] = {"other number": _numbers, "operands swapped": _swapped, "step lost": _lost}


@contextlib.contextmanager
def _captured_wrong(place: int, how: str) -> Iterator[None]:
    from fx2onnx.capture.driver import capture
    from fx2onnx.exporting import build
    from fx2onnx.verify.locating import program

    def wrong(*args: Any, **kwargs: Any) -> Any:
        captured = capture(*args, **kwargs)
        node = [each for each in captured.graph.nodes if each.op == "call_function"][place]
        first = next((each for each in node.args if isinstance(each, torch.fx.Node)), None)
        HARMS[how](node)
        if how == "step lost":
            for output in [*captured.outputs, *captured.mutations]:
                name = "value" if hasattr(output, "value") else "node"
                if getattr(output, name) is node:
                    setattr(output, name, first)
        return captured

    with mock.patch.object(build, "capture", wrong), mock.patch.object(program, "capture", wrong):
        yield


class Subject:
    """One architecture, and what is to be known of its sound export."""

    def __init__(self, architecture: Architecture) -> None:
        import onnx

        import fx2onnx
        from fx2onnx.verify.compare import bind, normalise_args
        from fx2onnx.verify.eager import Eager, in_mode

        self.name = architecture.name
        self.module, self.kwargs, self.shapes = architecture.build()
        with tempfile.TemporaryDirectory() as folder:
            self.result = self.exported(f"{folder}/sound.onnx")
            proto = onnx.load(self.result.path)
        self.op_types = list(dict.fromkeys(node.op_type for node in proto.graph.node))
        self.opset = proto.opset_import[0].version
        arguments = bind(self.module.forward, *normalise_args(self.module, (), self.kwargs), None)
        with in_mode(self.module, False):
            self.want = Eager(self.module, arguments).run([leaf.tensor for leaf in arguments.leaves])
        self.fx2onnx = fx2onnx

    def exported(self, path: str) -> Any:
        import fx2onnx

        return fx2onnx.export(self.module, (), path, kwargs=self.kwargs, dynamic_shapes=self.shapes)

    def plants(self) -> dict[str, list[Plant]]:
        from fx2onnx.verify.locating.program import Program, Settings

        program = Program.of(self.module, (), self.kwargs, Settings())
        _, outcome = program.at(program.settings.level)
        edits = [name for name, count in outcome.edits.items() if count]
        return {
            "capture": list(captures(program.captured)),
            "translation": list(translations(program.captured, self.opset)),
            "rewrite": list(rewrites(edits)),
            "engine": list(kernels(self.op_types)),
        }

    def gives(self, path: str) -> list[Any]:
        from fx2onnx.runner import InferenceSession

        session = InferenceSession(path)
        taken = {each.name for each in session.get_inputs()}
        return list(session.run(None, {name: value.numpy() for name, value in self.kwargs.items() if name in taken}))


def examine(subject: Subject, stage: str, plant: Plant) -> Row | None:
    """What ``locate`` says; None where the fault changes nothing, or nothing can be exported."""
    from fx2onnx.verify import locate

    with tempfile.TemporaryDirectory() as folder, plant.planted(), warnings.catch_warnings(action="ignore"):
        path = f"{folder}/wrong.onnx"
        try:
            result = subject.exported(path)
            if not differs(subject.gives(path), subject.want):
                return None
        except Exception:  # a fault may make an export fail, which nobody has to locate
            return None
        start = time.perf_counter()
        found = locate(result, subject.module, (), subject.kwargs)
        row = {"model": subject.name, "stage": stage, "what": plant.what, "how": plant.how}
        row |= {"seconds": round(time.perf_counter() - start, 2), "found": "" if found is None else found.stage}
        blame = "" if found is None else str(found.blame)
        return row | {"blame": blame[:200], "is_blamed": plant.blamed in f"{blame} {found and found.aten}"}


def page(rows: Sequence[Row], models: int) -> str:
    lines = [
        "# Faults planted in each stage",
        "",
        f"Generated by `make planted`. {(__doc__ or '').strip().partition(chr(10) * 2)[2]}",
        "",
        f"{models} architectures, {len(rows)} faults.",
        "",
        "| stage | faults | stage named | | code named |",
        "|---|---:|---:|---:|---:|",
    ]
    for stage in STAGES:
        found = [row for row in rows if row["stage"] == stage]
        right = sum(row["found"] == stage for row in found)
        blamed = "" if stage == "capture" else f"{sum(row['is_blamed'] for row in found)}"
        share = f"{100 * right / len(found):.1f} %" if found else ""
        lines.append(f"| {stage} | {len(found)} | {right} | {share} | {blamed} |")
    wrong = [row for row in rows if row["found"] != row["stage"]]
    lines += ["", "Named wrongly:", ""] if wrong else []
    for row in wrong:
        lines.append(
            f"- {row['model']}, {row['stage']}: {row['what']}, {row['how']}: {row['found'] or 'nothing'} ({row['blame'][:100]})"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="architectures of benchmarks.sabotage; default: all")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument(
        "--each", type=int, default=6, help="faults of each stage and architecture that change something"
    )
    parser.add_argument("--rows", type=Path, help="write each row as a line of JSON")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [each for each in ARCHITECTURES if not options.models or each.name in options.models.split(",")]
    rows: list[Row] = []
    for architecture in chosen:
        subject = Subject(architecture)
        for stage, plants in subject.plants().items():
            random.Random(f"{architecture.name} {stage}").shuffle(plants)
            found: list[Row] = []
            for plant in plants[: 4 * options.each] if stage in options.stages.split(",") else ():
                row = examine(subject, stage, plant) if len(found) < options.each else None
                if row is not None:
                    found.append(row)
                    if row["found"] != stage:
                        print(json.dumps(row), flush=True)
            rows += found
            print(architecture.name, stage, Counter(row["found"] for row in found), len(plants), flush=True)
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = page(rows, len(chosen))
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
