"""Numbers that only the data tells, where forward only prints, logs or raises them, and checks that only raise."""

from __future__ import annotations

import functools
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check

LOG = logging.getLogger("tests.shown")
X, OTHER = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[0.5, 9.0, -1.0], [2.0, 0.0, 1.0]])


def prints(x: torch.Tensor) -> torch.Tensor:
    print("max", x.max().item(), f"{x.mean():.3f}", x, float(x.sum()), x[0].tolist())
    return x * 2


def show(x: torch.Tensor) -> torch.Tensor:
    return print(f"{x.mean():.2f}") or x  # type: ignore[func-returns-value]


def prints_in_expressions(x: torch.Tensor) -> torch.Tensor:
    y = (print("max", x.max().item()), x * 2)[1]
    if x.shape[1] == 3 and print(x.sum().item()) is None:  # type: ignore[func-returns-value]
        y = show(y)
    _ = [print(round(value.item(), 2)) for value in x[0]]  # type: ignore[func-returns-value]
    return y


def prints_a_variable(x: torch.Tensor) -> torch.Tensor:
    text = f"max {x.max().item()}"
    text = f"{text}, {x.mean().item():.2f}" if x.dim() > 1 else text
    print(text)
    return x * 2


def prints_to_a_stream(x: torch.Tensor) -> torch.Tensor:
    stream: Any = io.StringIO()
    text: str = f"{x.max().item()}"
    print(text, file=stream)
    stream.close()
    return x * 2


def prints_arrays(x: torch.Tensor) -> torch.Tensor:
    print(x.numpy()[0, :2].mean(), x.long().numpy())
    return x * 2


def prints_lists(x: torch.Tensor) -> torch.Tensor:
    print(*x.tolist(), x.long().tolist()[0], sep=", ")
    LOG.warning("%s", x.sum(1).tolist())
    return x * 2


def prints_places(x: torch.Tensor) -> torch.Tensor:
    print(x.argmax().item())
    return x * 2


def logs(x: torch.Tensor) -> torch.Tensor:
    LOG.warning("%f of %s", x.sum().item(), x)
    logging.getLogger("tests.other").debug(f"{x.max().item()}")
    return x * 2


def warns(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 1e6:
        warnings.warn(f"large: {x.max().item()}", stacklevel=1)
    return x * 2


def raises(x: torch.Tensor) -> torch.Tensor:
    if torch.any(x > 1e9).item():
        raise ValueError(f"too large: {x.max().item()}, {x}")
    return x * 2


def asserts(x: torch.Tensor) -> torch.Tensor:
    assert not x.isnan().any(), f"not a number in {x}"
    assert torch.isfinite(x).all()
    torch._check(x.max().item() < 1e9, lambda: f"{x.max().item()}")
    torch._assert(x.max() < 1e9, f"max {x.max()}")
    torch.ops.aten._assert_scalar.default((x.abs().sum() > 0).item(), "nothing")
    return x * 2


class Shows:
    def __init__(self) -> None:
        self.is_on, self.count = True, 0

    def info(self, text: str, *rest: object) -> None:
        self.count += 1
        line = f"{self.count}: {text}"
        if self.is_on:
            print(line, *rest)

    @staticmethod
    def warning(text: str) -> None:
        LOG.warning(text)


SHOWS = Shows()


def check_that(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


def checks_by_a_function(x: torch.Tensor) -> torch.Tensor:
    check_that((x < 1e9).all(), f"too large: {x.max().item()}")
    return x * 2


def shows_by_an_object(x: torch.Tensor) -> torch.Tensor:
    SHOWS.info(f"{x.max().item()}", x)
    text = f"{x.sum()}"
    SHOWS.warning(text)
    return x * 2


REPORTED = [
    prints,
    prints_in_expressions,
    prints_a_variable,
    prints_to_a_stream,
    prints_arrays,
    prints_lists,
    prints_places,
    logs,
    shows_by_an_object,
]


@pytest.mark.parametrize(
    ("program", "is_reported"),
    [*((each, True) for each in REPORTED), (raises, False), (asserts, False), (checks_by_a_function, False)],
)
def test_what_is_only_shown_is_left_out(program: Callable[..., Any], is_reported: bool) -> None:
    result = check(program, (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))
    said = [line for line in result.report.warnings if "prints or logs" in line]
    assert len(said) == is_reported
    assert not said or "test_shown_numbers.py" in said[0]
    assert {node.op_type for node in result.model.graph} <= {"Mul", "Add"}


def test_a_warning_in_a_branch_by_data() -> None:
    check(warns, (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))


def keeps(x: torch.Tensor) -> torch.Tensor:
    text = f"{x.max().item()}"
    return x * len(text)


def prints_and_keeps(x: torch.Tensor) -> torch.Tensor:
    print(text := f"{x.max().item()}")
    return x * len(text)


def keeps_what_it_prints(x: torch.Tensor) -> torch.Tensor:
    text = f"{x.max().item()}"
    print(text)
    return x * len(text)


def appends_in_a_print(x: torch.Tensor) -> torch.Tensor:
    texts: list[str] = []
    print(texts.append(f"{x.max().item()}"))  # type: ignore[func-returns-value]
    return x * len(texts[0])


def appends_an_array_in_a_print(x: torch.Tensor) -> torch.Tensor:
    arrays: list[Any] = []
    print(x.numpy().sum() > 0 and arrays.append(1))  # type: ignore[func-returns-value]
    return x * len(arrays)


def prints_to_a_stream_that_is_read(x: torch.Tensor) -> torch.Tensor:
    stream = io.StringIO()
    print(f"{x.max().item()}", file=stream)
    return x * len(stream.getvalue())


def writes_to_a_stream_that_is_read(x: torch.Tensor) -> torch.Tensor:
    stream = io.StringIO()
    stream.write(f"{x.max().item()}")
    return x * len(stream.getvalue())


def prints_what_locals_reads(x: torch.Tensor) -> torch.Tensor:
    text = f"{x.max().item()}"
    print(text)
    return x * len(locals()["text"])


def info(text: str) -> int:
    return len(text)


class Keeps:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.last = ""

    def info(self, text: str) -> None:
        print(text)
        self.texts.append(text)

    def warning(self, *texts: str) -> None:
        self.last = texts[0]

    def _check(self, text: str) -> None:
        self.texts = [*self.texts, text]


KEEPS = Keeps()


def write(text: str) -> None:
    KEEPS.last = text


def keeps_by_an_object(x: torch.Tensor) -> torch.Tensor:
    KEEPS.info(f"{x.max().item()}")
    return x * len(KEEPS.texts[-1])


def keeps_a_variable_by_an_object(x: torch.Tensor) -> torch.Tensor:
    text = f"{x}"
    KEEPS.warning(text, "end")
    return x * len(KEEPS.last)


def keeps_by_a_check(x: torch.Tensor) -> torch.Tensor:
    KEEPS._check(f"{x.max().item()}")
    return x * len(KEEPS.texts)


def keeps_by_a_function(x: torch.Tensor) -> torch.Tensor:
    write(f"{x.max().item()}")
    return x * len(KEEPS.last)


class Unlike:
    """Keeps texts by what is no function of its class."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.info = self.texts.append
        self.warning = functools.partial(Keeps.warning, KEEPS)
        self.log = Writer(self.texts)

    @property
    def debug(self) -> Callable[[str], None]:
        return self.texts.append


class Writer:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __call__(self, text: str) -> None:
        self.texts.append(text)


UNLIKE = Unlike()


def keeps_by_a_method_of_a_list(x: torch.Tensor) -> torch.Tensor:
    UNLIKE.info(f"{x.max().item()}")
    return x * len(UNLIKE.texts[-1])


def keeps_by_a_partial(x: torch.Tensor) -> torch.Tensor:
    UNLIKE.warning(f"{x.max().item()}")
    return x * len(KEEPS.last)


def keeps_by_an_object_that_is_called(x: torch.Tensor) -> torch.Tensor:
    UNLIKE.log(f"{x.max().item()}")
    return x * len(UNLIKE.texts[-1])


def keeps_by_a_property(x: torch.Tensor) -> torch.Tensor:
    UNLIKE.debug(f"{x.max().item()}")
    return x * len(UNLIKE.texts[-1])


@pytest.mark.parametrize(
    "program",
    [
        keeps,
        prints_and_keeps,
        keeps_what_it_prints,
        appends_in_a_print,
        appends_an_array_in_a_print,
        prints_to_a_stream_that_is_read,
        writes_to_a_stream_that_is_read,
        prints_what_locals_reads,
        lambda x: x * info(f"{x.max().item()}"),
        keeps_by_an_object,
        keeps_a_variable_by_an_object,
        keeps_by_a_check,
        keeps_by_a_function,
        keeps_by_a_method_of_a_list,
        keeps_by_a_partial,
        keeps_by_an_object_that_is_called,
        keeps_by_a_property,
    ],
)
def test_text_that_is_kept_is_refused(program: Callable[..., Any]) -> None:
    with pytest.raises(fx2onnx.UserError, match="E104"):
        fx2onnx.export(program, (X,))


class Noting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.notes = Keeps()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes.info(f"{x.sum().item()}")
        self.notes.warning(f"{x}")
        return x * len(self.notes.last)


def test_an_object_that_keeps_texts_is_as_before() -> None:
    module = Noting()
    with pytest.raises(fx2onnx.UserError, match="E104"):
        fx2onnx.export(module, (X,))
    assert (module.notes.texts, module.notes.last) == ([], "")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * torch.ops.aten.numel.default(x),
        lambda x: x * torch.ops.aten.size.int(x, 0),
        lambda x: x * torch.sym_not(x.shape[0] > 1),
        lambda x: (x, torch.sym_not(x.shape[0] > 1)),
        lambda x: x * 2 if torch.fx.experimental.symbolic_shapes.guard_or_false(x.shape[0] > 1) else x,
        lambda x: (torch.ops.aten._assert_scalar.default(x.shape[0] < 9, "many"), x)[1],
        lambda x: (torch.ops.aten.sym_constrain_range.default(x.shape[0], min=1, max=9), x)[1],
    ],
)
def test_sizes_in_overloads_of_plain_numbers(program: Callable[..., Any]) -> None:
    check(program, (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))


@pytest.mark.parametrize("verb", ["", "_for_size"])
@pytest.mark.parametrize("form", ["sym_constrain_range", "_functional_sym_constrain_range"])
def test_a_range_of_a_size_that_data_tells(form: str, verb: str) -> None:
    overload = getattr(torch.ops.aten, form + verb).default

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        overload(count, 1, 3, torch.zeros(())) if form.startswith("_") else overload(count, min=1, max=3)
        return x[:, :count]

    check(program, (X, torch.tensor(2)), others=[(X, torch.tensor(3))])


KEPT: dict[str, torch.Tensor] = {}


def shows_sizes(x: torch.Tensor) -> torch.Tensor:
    print(f"rows {x.shape[0]}", x.shape)
    LOG.warning(f"{x.shape}")
    assert x.dim() == 2, f"rows {x.shape[0]}"
    if x.shape[1] != 3:
        raise ValueError(f"{x.shape[0]} rows of {x.shape[1]}")
    return x * 2


def caches_by_text(x: torch.Tensor) -> torch.Tensor:
    key = f"{x.shape[0]}x{x.shape[1]}"
    if key not in KEPT:
        KEPT[key] = torch.arange(x.shape[0])
    return x + KEPT[key][:, None]


@pytest.mark.parametrize(("program", "runs"), [(shows_sizes, 1), (caches_by_text, 2)])
def test_texts_of_sizes_that_decide_nothing(program: Callable[..., Any], runs: int) -> None:
    KEPT.clear()
    result = check(program, (X,), others=[(OTHER,)], dynamic_shapes=({0: "rows"},))
    assert not [line for line in result.report.warnings if "text" in line]
    assert len(result.report.attempts) == runs


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * 2 if str(x.shape[0]) == "2" else x,
        lambda x: x * {"2": 3.0}.get(f"{x.shape[0]}", 2.0),
        lambda x: x * len(f"{x.shape[0]}"),
        lambda x: x * 2 if str(tuple(x.shape)) == "(2, 3)" else x,
        lambda x: x * int(f"{x.shape[0]}".isdigit()),
    ],
)
def test_a_text_of_a_size_that_decides_is_a_warning_with_its_line(program: Callable[..., Any]) -> None:
    with pytest.warns(fx2onnx.ExportWarning, match=r"text of a dynamic size.* decides.*test_shown_numbers.py"):
        fx2onnx.export(program, (OTHER,), dynamic_shapes=({0: "rows"},))
