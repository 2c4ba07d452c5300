"""Export and the runner grow in proportion to the model, and nest as deep as eager PyTorch does.

What grows is counted (calls of Python functions and C functions, by sys.setprofile), so a busy machine changes nothing; where
the time by the square would be inside one call, seconds are compared, generously.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import limit_reached
from fx2onnx.irx.edit import replace_inputs
from fx2onnx.irx.private_names import use_count
from fx2onnx.irx.values import new_value
from fx2onnx.runner import InferenceSession, arena
from fx2onnx.sizes.expr import Dim, apply
from fx2onnx.torchcompat.pytrees import flatten
from tests.support import calls_of

X = torch.ones(2)


class Parameters(torch.nn.Module):
    """``count`` parameters, read one by one or in one operator."""

    def __init__(self, count: int, stacked: bool = False) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)) for _ in range(count)])
        self.stacked = stacked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stacked:
            return x + torch.stack(list(self.weights)).sum(0)
        for weight in self.weights:
            x = x + weight
        return x


class Turns(torch.nn.Module):
    """``count`` times what a function does with the last result and the input."""

    def __init__(self, count: int, turn: Callable[[Any, Any, int], Any]) -> None:
        super().__init__()
        self.count, self.turn = count, turn

    def forward(self, x: torch.Tensor) -> Any:
        result: Any = x
        for number in range(self.count):
            result = self.turn(result, x, number)
        return result


class Many(torch.nn.Module):
    """A list of ``count`` results that a function makes of one value."""

    def __init__(self, count: int, one: Callable[[torch.Tensor, int], torch.Tensor], joined: bool = False) -> None:
        super().__init__()
        self.count, self.one, self.joined = count, one, joined

    def forward(self, x: torch.Tensor) -> Any:
        shared = torch.relu(x)
        results = [self.one(shared, number) for number in range(self.count)]
        return torch.stack(results) if self.joined else results


class State(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            self.register_buffer(f"state_{number}", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for state in self.buffers():
            state.add_(x)
        return x * 2


class Constants(torch.nn.Module):
    """Tensors that forward meets and that are no parameters, and a number asked for after each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.held = [torch.ones(2) * number for number in range(count)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for held in self.held:
            total = total + held[0]
            x = x + held * total.item()
        return x


def projected(x: torch.Tensor, number: int) -> torch.Tensor:
    return (x.reshape(1, 2) @ torch.full((2, 2), float(number))).reshape(2) * 1


def joined(result: torch.Tensor, x: torch.Tensor, number: int) -> torch.Tensor:
    return torch.cat([result, x])


EXPORTS: dict[str, tuple[Callable[[int], torch.nn.Module], int]] = {
    "parameters": (Parameters, 60),
    "parameters in one operator": (lambda count: Parameters(count, stacked=True), 300),
    "a chain": (lambda count: Turns(count, lambda y, x, _: y * 1.01 + 0.5), 50),
    "products": (lambda count: Turns(count, lambda y, x, _: y * x), 100),
    "joins": (lambda count: Turns(count, joined), 40),
    "readers of one value": (lambda count: Many(count, lambda x, n: x * float(n), joined=True), 100),
    "products that are outputs": (lambda count: Many(count, projected), 40),
    "parts of an axis": (lambda count: Many(count, lambda x, n: x.unsqueeze(0)[0] + n), 60),
    "state": (State, 40),
    "constants and numbers": (Constants, 40),
    "identical layers": (lambda count: torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(count))), 40),
}  # fmt: skip


@pytest.mark.long_cases(but=["state"])
@pytest.mark.parametrize("name", EXPORTS)
def test_export_calls_in_proportion(name: str) -> None:
    make, count = EXPORTS[name]
    state = "io" if name == "state" else "warn"

    def export(size: int) -> Callable[[], object]:
        module = make(size)
        return lambda: fx2onnx.export(module, (X,), state=state)

    export(4 * count)()  # what torch keeps of operators that it has seen
    small, large = calls_of(export(count)), calls_of(export(4 * count))
    assert large < 4.6 * small


@pytest.mark.long
@pytest.mark.parametrize("name", ["a chain", "readers of one value", "products that are outputs"])
def test_runner_calls_in_proportion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MAX_LOOKS", 1000)  # they grow by the square, up to a limit
    make, count = EXPORTS[name]

    def run(size: int) -> Callable[[], object]:
        model = fx2onnx.export(make(size), (X,)).model_proto.SerializeToString()

        def work() -> None:
            session = InferenceSession(model)
            feed = {session.get_inputs()[0].name: X.numpy()}
            names = [output.name for output in session.get_outputs()]
            for _ in range(2):  # the second time by a plan
                session.run(names, feed)

        return work

    run(count)()
    small, large = calls_of(run(count)), calls_of(run(4 * count))
    assert large < 4.6 * small


@pytest.mark.parametrize("width", [3, 300])
def test_inputs_are_replaced_at_once(width: int) -> None:
    first, second = (
        [new_value(f"{name}_{place}", ir.DataType.FLOAT, (1,)) for place in range(width)] for name in ("a", "b")
    )
    node = ir.Node("", "Concat", [*first, first[0]], [ir.AttrInt64("axis", 0)], name="joined")
    assert replace_inputs(zip(first, second, strict=True)) == [node]
    assert list(node.inputs) == [*second, second[0]]
    assert not any(value.uses() for value in first)
    assert [use_count(value) for value in second] == [2] + [1] * (width - 1)
    assert [tuple(use) for use in second[1].uses()] == [(node, 1)]


@pytest.mark.long
def test_looks_for_gaps_in_memory_are_limited() -> None:
    buffers = [arena.Buffer(130, 0, 1) for _ in range(4_000)]
    assert arena.assign_offsets(buffers[:100]) == 100 * 192  # the tight rule, by cache lines
    assert arena.assign_offsets(buffers) == 4_000 * 256  # the fast one, by powers of two


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_a_hundred_thousand_parameters(stacked: bool) -> None:
    """Seconds for each parameter, in turn; the bound leaves room for a busy machine."""

    def seconds_each(count: int) -> float:
        module = Parameters(count, stacked)
        start = time.perf_counter()
        fx2onnx.export(module, (X,))
        return (time.perf_counter() - start) / count

    small = sorted(seconds_each(2_500) for _ in range(4))[2]
    assert seconds_each(100_000) < 2.5 * small


class Wrapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


def nested(levels: int, last: torch.nn.Module | None = None) -> torch.nn.Module:
    module = last or torch.nn.LayerNorm(2)
    for _ in range(levels):
        module = Wrapped(module)
    return module


def deepest_in_eager() -> int:
    """Levels of modules that eager PyTorch can run from here."""
    low, high = 1, sys.getrecursionlimit()
    while low < high:
        middle = (low + high + 1) // 2
        try:
            nested(middle)(X)
            low = middle
        except RecursionError:
            high = middle - 1
    return low


def levels_kept() -> int:
    """Levels that an export needs for itself where Python ends calls through C at a number of its own, which nothing raises."""
    limit = sys.getrecursionlimit()
    deepest = deepest_in_eager()
    sys.setrecursionlimit(2 * limit)
    try:
        return 20 if deepest_in_eager() == deepest else 0
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.long
def test_export_runs_as_deep_as_eager() -> None:
    limit = sys.getrecursionlimit()
    deepest = deepest_in_eager() - levels_kept()
    assert deepest > 100
    result = fx2onnx.export(nested(deepest), (X,), verify=True)
    assert result.report.nodes_onnx == 1
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_no_setting_raises_is_told_from_that_of_calls() -> None:
    def deep(levels: int) -> None:
        if not levels:
            raise RecursionError
        deep(levels - 1)

    for levels, text in ((10, "at a number of its own"), (sys.getrecursionlimit() * 3 // 5, "the limit is ")):
        with pytest.raises(RecursionError) as caught:
            deep(levels)
        assert text in limit_reached(caught.value)[0]


def test_a_recursion_of_forward_is_named() -> None:
    class Endless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self(self.part(x))
            return result

    limit = sys.getrecursionlimit()
    with pytest.raises(UserError) as caught:
        fx2onnx.export(Wrapped(Endless()), (X,))
    error = caught.value
    assert error.code == "E101"
    assert error.module_path is not None
    assert error.module_path.startswith("inner")
    assert error.where is not None
    assert error.where.file == __file__
    assert f"the limit is {limit} calls" in error.why or levels_kept()
    assert isinstance(error.__cause__, RecursionError)
    assert sys.getrecursionlimit() == limit


def test_a_limit_that_forward_sets_stays_as_in_eager_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)  # other tests may have left threads

    class Raising(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sys.setrecursionlimit(12_345)
            return x + 1

    limit = sys.getrecursionlimit()
    try:
        fx2onnx.export(Raising(), (X,))
        assert sys.getrecursionlimit() == 12_345
    finally:
        sys.setrecursionlimit(limit)


def test_a_limit_that_another_thread_sets_stays() -> None:
    asked, done = threading.Event(), threading.Event()

    def other() -> None:
        asked.wait()
        sys.setrecursionlimit(12_345)
        done.set()

    class Waiting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            asked.set()
            done.wait()
            return x + 1

    limit = sys.getrecursionlimit()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        fx2onnx.export(Waiting(), (X,))
        assert sys.getrecursionlimit() == 12_345
    finally:
        sys.setrecursionlimit(limit)
        thread.join()


@pytest.mark.long
def test_two_thousand_modules_inside_each_other() -> None:
    limit = sys.getrecursionlimit()
    kept = levels_kept()
    sys.setrecursionlimit(12_000)
    try:
        levels = deepest_in_eager() - kept if kept else 2_000
        module = nested(levels, torch.nn.Linear(2, 2))
        result = fx2onnx.export(module, (X,), metadata="full")
        assert sys.getrecursionlimit() == 12_000
    finally:
        sys.setrecursionlimit(limit)
    assert {value.shape.numpy() for value in result.model.graph.initializers.values()} == {(2, 2), (2,)}
    assert any(name.startswith("inner." * levels + "weight") for name in list(result.model.graph.initializers))


@pytest.mark.long
def test_sequences_inside_each_other_are_lowered_in_proportion() -> None:
    def module(levels: int) -> torch.nn.Module:
        inner = torch.nn.Sequential(torch.nn.ReLU())
        for _ in range(levels):
            inner = torch.nn.Sequential(torch.nn.Linear(2, 2), inner)
        return inner

    fx2onnx.export(module(160), (X,))
    small, large = (calls_of(lambda levels=levels: fx2onnx.export(module(levels), (X,))) for levels in (40, 160))
    assert large < 6 * small


class Opened(torch.nn.Module):
    def forward(self, box: Any) -> Any:
        depth = 0
        while not isinstance(box, torch.Tensor):
            box, depth = (box["in"] if isinstance(box, dict) else box[0]), depth + 1
        result: Any = box + 1
        for _ in range(depth):
            result = (result,)
        return result


def test_arguments_and_results_nested_a_thousand_deep() -> None:
    box: Any = X
    for number in range(1_000):
        box = (box,) if number % 2 else {"in": box}
    result = fx2onnx.export(Opened(), (box,))
    restored = result.restore_outputs([7])
    for _ in range(1_000):
        (restored,) = restored
    assert restored == 7


def test_flatten_keeps_order_and_structure() -> None:
    tree = {"a": [1, (2, 3)], "b": {"c": 4, "d": []}, "e": (5,)}
    leaves, rebuild = flatten(tree)
    assert [(leaf.path(), leaf.value) for leaf in leaves] == [
        ("['a'][0]", 1), ("['a'][1][0]", 2), ("['a'][1][1]", 3), ("['b']['c']", 4), ("['e'][0]", 5)
    ]  # fmt: skip
    assert rebuild([10, 20, 30, 40, 50]) == {"a": [10, (20, 30)], "b": {"c": 40, "d": []}, "e": (50,)}


@pytest.mark.long
def test_numbers_behind_a_long_chain() -> None:
    module = Turns(1_500, lambda y, x, _: y + 1 if isinstance(y, torch.Tensor) else y)
    chained = torch.nn.Sequential(module, Turns(1, lambda y, x, _: torch.arange(3) * y.sum().to(torch.int64).item()))
    result = fx2onnx.export(chained, (X,))
    session = InferenceSession(result.model_proto.SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    assert got.tolist() == [0, 3002, 6004]


@pytest.mark.long
def test_products_beyond_the_recursion_limit() -> None:
    result = fx2onnx.export(Turns(1_500, lambda y, x, _: y * x), (X,))
    assert result.report.nodes_onnx == 1_500


SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda k, m: k * m,
    "floordiv": lambda k, m: (k + m) // 3,
    "max": lambda k, m: apply("max", k + 1, m),
    "mod": lambda k, m: (k + m) % 7,
}


@pytest.mark.long_cases("product")
@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_many_operations(name: str) -> None:
    first, second = Dim.symbol("a"), Dim.symbol("b")

    def made(a: Any, b: Any) -> Any:
        for _ in range(1_000):
            a = SIZES[name](a, b)
        return a

    dim = made(first, second)
    assert isinstance(dim, Dim)
    assert dim == made(first, second)
    assert hash(dim) == hash(made(first, second))
    assert str(dim)
    assert dim.symbols() == {"a", "b"}
    want = 5
    for _ in range(1_000):
        want = {"product": want, "floordiv": (want + 1) // 3, "max": max(want + 1, 1), "mod": (want + 1) % 7}[name]
    assert dim.evaluate({"a": 5, "b": 1}) == want
    assert dim.substitute({"b": Dim.symbol("c")}).symbols() == {"a", "c"}


def test_equal_numbers_of_two_types_make_two_atoms() -> None:
    size = Dim.symbol("s")
    whole, real = apply("floordiv", size, 2), apply("floordiv", size, 2.0)
    assert isinstance(whole, Dim)
    assert isinstance(real, Dim)
    assert (whole.is_real, real.is_real) == (False, True)


@pytest.mark.long
def test_a_size_of_a_thousand_operations_is_computed() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size: Any = x.shape[0]
            for _ in range(1_000):
                size = (size + x.shape[1] * 2) // 2
            return x + size

    result = fx2onnx.export(Sized(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: "a", 1: "b"}})
    session = InferenceSession(result.model_proto.SerializeToString())
    (got,) = session.run(None, {"x": np.zeros((90, 6), np.float32)})
    size = 90
    for _ in range(1_000):
        size = (size + 12) // 2
    assert set(got.reshape(-1)) == {float(size)}


class Branches(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inside(y: torch.Tensor, depth: int) -> torch.Tensor:
            if not depth:
                return y + 1
            taken: torch.Tensor = torch.cond(y.sum() > depth, lambda z: inside(z * 2, depth - 1), lambda z: z - 1, (y,))
            return taken

        return inside(x, self.depth)


def test_the_deepest_branches_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fx2onnx.export(Branches(30), (X,), path)
    onnx.load(path)
    session = InferenceSession(path)
    (got,) = session.run(None, {session.get_inputs()[0].name: np.array([50, 50], np.float32)})
    assert got.tolist() == [50 * 2.0**30] * 2  # one more is lost in float32


def test_deeper_branches_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(UserError) as caught:
        fx2onnx.export(Branches(31), (X,), path)
    assert caught.value.code == "E203"
    assert caught.value.where is not None
    assert not path.exists()
