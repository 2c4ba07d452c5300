"""A module cannot tell that it is captured: each of ``questions.QUESTIONS`` gets the answer of eager PyTorch."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.capture.questions import FAMILIES, NEED_DATA, PLACES, sources

_NUMBERS = itertools.count()
X, N = torch.rand(2, 3, generator=torch.Generator().manual_seed(0)) + 1, torch.arange(4)


class Asked:
    """A module, in files of its own, that asks one question."""

    def __init__(self, question: str, place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        number = next(_NUMBERS)
        names = [f"helper_{number}", f"asking_{number}"]
        for name, source in zip(names, sources(question, place, names[0]), strict=True):
            (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(folder)
        torch.manual_seed(0)
        self.module: torch.nn.Module = importlib.import_module(names[1]).Model().eval()
        self.file = folder / f"{names[place == 'forward']}.py"

    def is_answered_as_eager(self) -> bool:
        with torch.no_grad():
            want = self.module(X, N).numpy()
        proto = fx2onnx.export(self.module, (X, N)).model_proto
        session = InferenceSession(proto.SerializeToString())
        feeds: dict[str, Any] = {"x": X.numpy(), "n": N.numpy()}
        (found,) = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
        return np.allclose(found, want, rtol=1e-5)


def _otherwise(
    questions: list[tuple[str, str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str, str]]:
    """Those that are answered otherwise than by eager PyTorch, or refused."""
    found = []
    for question, place in questions:
        try:
            if not Asked(question, place, folder, monkeypatch).is_answered_as_eager():
                found.append((question, place, "differs"))
        except fx2onnx.Fx2OnnxError as error:
            found.append((question, place, f"{error.code}: {error}"))
    return found


@pytest.mark.long_cases(but=["mode"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_eager(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question at one of the places."""
    places = itertools.cycle(PLACES)
    assert not _otherwise([(question, next(places)) for question in FAMILIES[family]], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_wherever_the_code_lies(family: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _otherwise([(question, place) for question in FAMILIES[family]], tmp_path, monkeypatch)


@pytest.mark.parametrize("question", NEED_DATA)
def test_what_needs_data_is_refused_with_its_line(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("forward", "function"):
        asked = Asked(question, place, tmp_path, monkeypatch)
        with pytest.raises(fx2onnx.UserError) as caught:
            fx2onnx.export(asked.module, (X, N), capture="fake", data_branches="error")
        assert caught.value.code == "E104"
        assert caught.value.where is not None
        assert Path(caught.value.where.file).name == asked.file.name


def check_that(is_true: Any, message: str) -> str:
    return message


def _checks(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.dim() == 2, f"not a matrix: {x}")
    check_that(
        torch.all(x > -100),
        f"numbers such as {x} and {x * 2!r} are below",
    )
    return x + 1


def _keeps(x: torch.Tensor) -> torch.Tensor:
    text = f"{x}"
    check_that(True, text)
    return x + 1


def _asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if check_that(True, f"{x}") else x


def test_the_message_of_a_check_needs_no_numbers() -> None:
    x = torch.randn(2, 3)
    (got,) = InferenceSession(fx2onnx.export(_checks, (x,)).model_proto.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(got, _checks(x).numpy())
    for other in (_keeps, _asks):
        with pytest.raises(fx2onnx.UserError, match="E104"):
            fx2onnx.export(other, (x,))


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.nonzero()
    return rows.float() if rows.shape[0] * 2 > 3 else x.int()


def _by_number(x: torch.Tensor) -> torch.Tensor:
    number = x.int().sum().item()
    return x.float() if number > 3 else x.int()


@pytest.mark.parametrize(
    ("asks", "origin"),
    [(_by_rows, r"axis 0 of nonzero's result \(.*\.py:\d+\)"), (_by_number, r"from data \(.*\.py:\d+\)")],
)
def test_a_number_that_decides_is_said_with_its_line(asks: Any, origin: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=rf"(?s)E104.*{origin}"):
        fx2onnx.export(asks, (torch.ones(3),), data_branches="error")


def test_the_questions_are_many() -> None:
    assert sum(map(len, FAMILIES.values())) * len(PLACES) >= 300
    assert all(len(set(questions)) == len(questions) for questions in FAMILIES.values())
