"""The page and the drawing of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fx2onnx.report.document import MOST_POINTS, TrainingCurves, training_drawing, training_page
from tests.report.browsing import DESK, PHONE, Opened

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SVG = "{http://www.w3.org/2000/svg}"


def curves(**more: Any) -> TrainingCurves:
    values = {"loss": [2.0, 1.5, float("nan"), 0.5], "accuracy": [0.1, 0.4, 0.6, 0.9]}
    tests = [(0, {"loss": 2.1, "accuracy": 0.1}), (4, {"loss": 0.6, "accuracy": 0.8})]
    return TrainingCurves(**{"source": "digits", "curves": values, "tests": tests, **more})


@pytest.mark.long
@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("name", ["accuracy", HOSTILE])
def test_the_page_in_a_browser(browser: Any, size: dict[str, int], name: str, tmp_path: Path) -> None:
    file = tmp_path / "training.html"
    file.write_text(training_page(curves(curves={"loss": [2.0, 1.0], name: [0.1, 0.9]}, source=name)))
    opened = Opened(browser, file, size)
    assert opened.is_at_top()
    assert size is PHONE or opened.too_wide() == []
    assert opened.count("#curves .chart svg") == 2
    assert opened.count("#curves .chart svg path") > 4
    opened.show("steps")
    assert opened.count("#step-table tbody tr") == 2
    assert name in opened.page.inner_text("h1")
    assert not opened.complaints


def test_the_page_holds_the_numbers() -> None:
    text = training_page(curves())
    assert '"accuracy": [0.1, 0.4, 0.6, 0.9]' in text or '"accuracy":[0.1,0.4,0.6,0.9]' in text
    assert "NaN" not in text.split('id="data"')[1].split("</script>")[0]


def test_the_drawing() -> None:
    """What is not finite is a gap; tests are points; the first value is left of the last."""
    root = ElementTree.fromstring(training_drawing(curves()))
    lines = [line.attrib["points"].split() for line in root.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [2, 1, 4]
    places = [tuple(map(float, point.split(","))) for point in lines[2]]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True), "larger numbers are higher"
    assert len(list(root.iter(f"{SVG}circle"))) == 4
    assert {"loss", "accuracy", "step 0", "step 4", "points: test"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_a_long_training_is_thinned() -> None:
    root = ElementTree.fromstring(training_drawing(curves(curves={"loss": [1.0] * (4 * MOST_POINTS)}, tests=())))
    (line,) = root.iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) <= MOST_POINTS


def test_one_step_and_hostile_names() -> None:
    root = ElementTree.fromstring(training_drawing(curves(curves={HOSTILE: [1.0]}, tests=(), source=HOSTILE, first=7)))
    assert HOSTILE in {text.text for text in root.iter(f"{SVG}text")}
    assert not list(root.iter(f"{SVG}script"))
