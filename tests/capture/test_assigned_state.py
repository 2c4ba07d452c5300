"""State that forward assigns, rather than writes in place: reported, refused, left out or carried by ``state=``, and verified."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import locate, verify
from fx2onnx.runner import InferenceSession
from fx2onnx.runner.trainer import StatefulSession
from tests.support import check

ENGINES = [InferenceSession, onnxruntime.InferenceSession]
SAMPLES = [torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


class Holder(nn.Module):
    def __init__(self, step: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.h, self.pair = torch.zeros(3), (torch.zeros(3), [torch.ones(3)])
        self.items, self.named = [torch.zeros(3), torch.zeros(3)], {"a": {"b": torch.zeros(3)}}
        self.space, self.sub = types.SimpleNamespace(h=torch.zeros(3)), nn.Identity()
        self.sub.state = torch.zeros(3)
        self.register_buffer("seen", torch.zeros(3))
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step(self, x.mean((0, 1)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5)
        self.h, self.c = torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, (self.h, self.c) = self.lstm(x, (self.h, self.c))
        return x


def _attribute(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.h = m.h * 0.5 + y
    return m.h


def _by_name(m: Any, y: torch.Tensor) -> torch.Tensor:
    before = m.sub.state
    setattr(m.sub, "state", before + y)  # noqa: B010
    return before


def _buffer(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.seen = m.seen + y
    return m.seen


def _in_place(m: Any, y: torch.Tensor) -> torch.Tensor:
    return m.h.mul_(0.5).add_(y)


def _first_in_place(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.seen.add_(1)
    m.seen = m.seen * 2
    return m.seen


def _tuple(m: Any, y: torch.Tensor) -> torch.Tensor:
    found = m.pair[0] * m.pair[1][0]
    m.pair = (m.pair[0] + y, [m.pair[1][0] * 0.5])
    return found


def _list(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.items[1] = m.items[1] + y
    return m.items[0] + m.items[1]


def _shifted(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.items.append(y)
    m.items = m.items[1:]
    return m.items[0]


def _dict(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.named["a"]["b"] = m.named["a"]["b"] + y
    return m.named["a"]["b"]


def _object(m: Any, y: torch.Tensor) -> torch.Tensor:
    m.space.h = m.space.h + y
    return m.space.h


COUNT = types.SimpleNamespace(h=torch.zeros(3), named={"b": torch.zeros(3)})


class Shared:
    h, items = torch.zeros(3), [torch.zeros(3)]


def _global(m: Any, y: torch.Tensor) -> torch.Tensor:
    COUNT.h = COUNT.h + y
    COUNT.named["b"].add_(y)
    return COUNT.h + COUNT.named["b"]


def _class(m: Any, y: torch.Tensor) -> torch.Tensor:
    Shared.h = Shared.h + y
    Shared.items[0] = Shared.items[0] * 0.5 + y
    return Shared.h + Shared.items[0]


def _by_data(m: Any, y: torch.Tensor) -> torch.Tensor:
    if y.sum() > 0:
        m.h = m.h + y
    return m.h


STEPS: dict[Callable[[Any, torch.Tensor], torch.Tensor], list[str]] = {
    _attribute: ["h"], _by_name: ["sub.state"], _buffer: ["seen"], _in_place: ["h"], _first_in_place: ["seen"],
    _tuple: ["pair.0", "pair.1.0"], _list: ["items.1"], _shifted: ["items.0", "items.1"], _dict: ["named.a.b"],
    _object: ["space.h"], _by_data: ["h"], _global: [f"{__name__}.COUNT.h", f"{__name__}.COUNT.named.b"],
    _class: ["Shared.h", "Shared.items.0"],
}  # fmt: skip
MODULES: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    step.__name__.strip("_"): (lambda step=step: Holder(step), names) for step, names in STEPS.items()
} | {
    "lstm": (Recurrent, ["h", "c"]),
    "scripted": (lambda: torch.jit.script(Recurrent()), ["h", "c"]),
}


def _check_carried(make: Callable[[], nn.Module], result: Any, module: nn.Module) -> None:
    for engine in ENGINES:
        COUNT.h, COUNT.named["b"] = torch.zeros(3), torch.zeros(3)
        Shared.h, Shared.items[0] = torch.zeros(3), torch.zeros(3)
        own = make()
        own.load_state_dict(module.state_dict())
        session = StatefulSession(engine(result.model_proto.SerializeToString()), result.initial_state)
        for x in SAMPLES:
            with torch.no_grad():
                want = own(x)
            np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_assigned_state_is_reported_refused_and_carried(name: str) -> None:
    make, names = MODULES[name]
    module = make()
    result = fx2onnx.export(module, (SAMPLES[0],))
    reported = [text.split()[1] for text in result.report.mutations]
    assert sorted(reported) == sorted(names)
    assert len([text for text in result.report.warnings if "the file does not" in text]) == len(names)
    assert not fx2onnx.export(module, (SAMPLES[0],), state="drop").report.warnings
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(module, (SAMPLES[0],), state="error")
    assert caught.value.code == "E106"
    assert caught.value.where is not None or name == "shifted"
    result = fx2onnx.export(module, (SAMPLES[0],), state="io")
    assert {f"{each}.next" for each in names} == set(result.report.output_names[1:])
    _check_carried(make, result, module)


@pytest.mark.long_cases(
    but=[
        "warn-attribute",
        "warn-first_in_place",
        "warn-tuple",
        "warn-shifted",
        "warn-object",
        "warn-by_data",
        "warn-lstm",
    ]
)
@pytest.mark.parametrize(
    "name", ["attribute", "first_in_place", "tuple", "shifted", "object", "by_data", "lstm", "scripted", "global"]
)
@pytest.mark.parametrize("state", ["warn", "io"])
def test_modules_with_assigned_state_verify(name: str, state: str) -> None:
    module = MODULES[name][0]()
    shapes = None if name in ("scripted", "by_data") else ({0: "n"},)
    result = fx2onnx.export(module, (SAMPLES[0],), state=state, verify=True, dynamic_shapes=shapes)
    assert result.report.verdict["ok"]
    assert locate(result, module, (SAMPLES[0],)) is None


@pytest.mark.parametrize("place", ["arr", "space.arr", f"{__name__}.NUMBERS"])
def test_an_array_of_numpy_is_said(place: str) -> None:
    def step(m: Any, y: torch.Tensor) -> torch.Tensor:
        array = {"arr": m.arr, "space.arr": m.space.arr}.get(place, NUMBERS)
        array += 1
        return y + torch.from_numpy(array)

    module = Holder(step)
    module.arr, module.space.arr = np.zeros(3, np.float32), np.zeros(3, np.float32)
    assert [text.split()[1] for text in fx2onnx.export(module, (SAMPLES[0],)).report.mutations] == [place]
    with pytest.raises(fx2onnx.UserError, match="E106"):
        fx2onnx.export(module, (SAMPLES[0],), state="error")
    assert not any(array.any() for array in (module.arr, module.space.arr, NUMBERS))


NUMBERS = np.zeros(3, np.float32)


@pytest.mark.parametrize("place", ["view", "list", "data", "halves"])
def test_tensors_that_share_memory_are_refused_where_one_is_written(place: str) -> None:
    module = Holder(lambda m, y: m.one.add_(1).sum() + m.two.sum())
    module.one = torch.zeros(4)
    module.two = {"view": module.one[1:], "list": module.one.view(2, 2), "data": nn.Parameter(module.one.data)}.get(
        place, module.one[3:]
    )
    if place == "halves":
        module.one = module.one[:3]
        assert len(fx2onnx.export(module, (SAMPLES[0],)).report.mutations) == 1
        return
    with pytest.raises(fx2onnx.UserError, match="one, which shares memory with two") as caught:
        fx2onnx.export(module, (SAMPLES[0],))
    assert caught.value.code == "E103"


def test_an_input_that_stands_for_two_places_is_a_warning() -> None:
    def step(m: Any, y: torch.Tensor) -> torch.Tensor:
        m.items = [*m.items[1:], y]
        return m.items[0] + m.items[1]

    module = Holder(step)
    module.items = [torch.zeros(3)] * 2
    with pytest.warns(fx2onnx.ExportWarning, match=r"the file's input items\.1 is items\.0, too"):
        fx2onnx.export(module, (SAMPLES[0],), state="io")


def test_a_wrong_next_state_is_found() -> None:
    module, other = Holder(_attribute), Holder(lambda m, y: setattr(m, "h", m.h * 0.4 + y) or m.h * 0 + y)
    result = fx2onnx.export(module, (SAMPLES[0],), state="io")
    verdict = verify(result, other, (SAMPLES[0],))
    assert {row.output for row in verdict.rows if not row.ok} == {"output", "h.next"}


class First(nn.Module):
    """Has no state before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.h, self.count, self.items = None, 0, []
        self.gone = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mean((0, 1))
        self.h = y if self.h is None else self.h + y
        self.count += 1
        self.items.append(y)
        del self.gone
        return x + self.h


def test_what_is_no_tensor_before_or_afterwards_is_said() -> None:
    result = fx2onnx.export(First(), (SAMPLES[0],))
    assert sorted(text.split()[1] for text in result.report.mutations) == ["count", "gone", "h", "items.0"]
    result = fx2onnx.export(First(), (SAMPLES[0],), state="io")
    assert result.report.input_names == ["x"]
    assert sorted(result.report.output_names) == ["h.next", "items.0.next", "output"]
    assert [text.split()[4] for text in result.report.warnings if "no tensor before" in text] == ["h", "items.0"]
    assert [text.split()[4].strip(";") for text in result.report.warnings if "afterwards" in text] == ["count", "gone"]


def _running_sum(m: Any, y: torch.Tensor) -> Any:
    m.count = m.count + y.sum().item()
    return m.count


def _after_use(m: Any, y: torch.Tensor) -> Any:
    before, m.count = m.count, int((y > 0).sum())
    return before


def _listed(m: Any, y: torch.Tensor) -> Any:
    m.items.append((y.sum().item(), "sum"))
    return m.items[-1][0]


def _counted_in_list(m: Any, y: torch.Tensor) -> Any:
    m.items.append(int((y > 0).sum()))
    return m.items[-1]


def _counts_rows(m: Any, y: torch.Tensor) -> Any:
    m.count += y.shape[0]
    return m.count


class Numbers(nn.Module):
    def __init__(self, step: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.count, self.items, self.step = 1, [], step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = x.shape[0]
        return x[:, 0] * self.step(self, x)


@pytest.mark.parametrize("axes", [None, ({0: "n"},)], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("step", "name"),
    [
        (_running_sum, "count"),
        (_after_use, "count"),
        (_listed, "items.0.0"),
        (_counted_in_list, "items.0"),
        (_counts_rows, "count"),
    ],
)
def test_numbers_of_data_and_of_sizes_are_state(step: Any, name: str, axes: Any) -> None:
    """What is assigned is said by name; that a size is kept where none was, as at every call, is no state."""
    result = check(Numbers(step), (SAMPLES[0],), others=[(SAMPLES[1],)], dynamic_shapes=axes)
    said = [text for text in result.report.warnings if "forward changes" in text]
    assert [text.split()[4].strip(";") for text in said] == [name]
    with pytest.raises(fx2onnx.UserError, match=f"E106.* forward changes the attribute {name}"):
        fx2onnx.export(Numbers(step), (SAMPLES[0],), dynamic_shapes=axes, state="error")


def test_after_a_first_call_the_state_is_carried() -> None:
    module = First()
    module(SAMPLES[0])
    module.gone = torch.zeros(3)
    result = fx2onnx.export(copy.deepcopy(module), (SAMPLES[0],), state="io")
    assert "h" in result.report.input_names


def test_one_tensor_in_two_places_is_refused_as_inputs() -> None:
    module = Recurrent()
    module.c = module.h
    assert fx2onnx.export(module, (SAMPLES[0],)).report.mutations
    with pytest.raises(fx2onnx.UserError, match="one tensor before the call"):
        fx2onnx.export(module, (SAMPLES[0],), state="io")


class Memo(nn.Module):
    """Keeps what it computes from weights and sizes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kept = nn.Parameter(torch.ones(3)), {}
        self.conv = torch.nn.utils.weight_norm(nn.Conv1d(2, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "table" not in self.kept:
            self.kept["table"] = self.table * torch.arange(x.shape[2])
        return self.conv(x) + self.kept["table"]


def test_what_is_the_same_at_every_call_is_no_state() -> None:
    result = fx2onnx.export(Memo(), (SAMPLES[0],), state="error", dynamic_shapes=({0: "n"},))
    assert not result.report.mutations


def test_a_traced_copy_has_the_modules_changes() -> None:
    def step(m: Any, y: torch.Tensor) -> torch.Tensor:
        m.h = y
        return y

    result = fx2onnx.export(Holder(step), (SAMPLES[0],), capture="symbolic", state="io")
    assert result.report.strategy == "symbolic"
    assert result.report.output_names == ["output", "h.next"]


class Counting(nn.Module):
    """A buffer of a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(3))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        own: torch.Tensor = getattr(self, self.name)
        own.add_(x.mean(0))
        return {"y": x + own, "output": x * 2}


def test_state_that_is_called_as_an_output_or_an_argument() -> None:
    """The output is called otherwise, with a warning; two inputs of one name cannot be."""
    x = torch.ones(2, 3)
    result = fx2onnx.export(Counting("output"), (x,), state="io", verify=True)
    assert [value.name for value in result.model.graph.inputs] == ["x", "output"]
    assert [value.name for value in result.model.graph.outputs] == ["y", "output_1", "output.next"]
    with pytest.raises(fx2onnx.UserError, match="buffer x that forward changes is called as an argument"):
        fx2onnx.export(Counting("x"), (x,), state="io")
    named = fx2onnx.export(Counting("x"), (x,), state="io", input_names=["x_in"], verify=True)
    assert [value.name for value in named.model.graph.inputs] == ["x_in", "x"]
