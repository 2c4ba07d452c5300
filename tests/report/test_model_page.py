"""The pages of a model and of a verdict in a real headless browser: names are text, searching and zooming find nodes."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from fx2onnx.cli.show_file import write_page
from fx2onnx.report.model_page import verdict_page
from tests.report.browsing import DESK, PHONE, Opened
from tests.report.hostile import NAMES

TABS = ("modules", "graph", "interface", "weights", "sources")


def model_of(layers: int) -> onnx.ModelProto:
    """Ten nodes a layer in modules of three depths, each layer with a weight; one weight is tied."""
    nodes, weights = [], [helper.make_tensor("tied", TensorProto.FLOAT, [4, 5], range(20))]
    last = "x"
    for layer in range(layers):
        names = [f"l{layer}_{index}" for index in range(10)]
        weights.append(helper.make_tensor(f"layers.{layer}.attention.scale", TensorProto.FLOAT, [1], [float(layer)]))
        for index, name in enumerate(names):
            module = f"layers.{layer}.{'attention' if index < 5 else 'mlp.act'}"
            if index == 0:
                inputs, op_type = [last, f"layers.{layer}.attention.scale"], "Mul"
            else:
                inputs, op_type = [names[index - 1]], "Relu" if index % 2 else "Tanh"
            node = helper.make_node(op_type, inputs, [name], f"{module}/{op_type}_{index}")
            node.metadata_props.add(key="source", value=f"net.py:{index + 1}")
            nodes.append(node)
        last = names[-1]
    for index, module in enumerate(("embed", "head")):
        nodes.append(helper.make_node("MatMul", [last, "tied"], [f"out{index}"], f"{module}/MatMul"))
    shape = ["batch", 4]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    outs = [helper.make_tensor_value_info(f"out{index}", TensorProto.FLOAT, ["batch", 5]) for index in range(2)]
    graph = helper.make_graph(nodes, "main", [x], outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def opened_page(
    browser: Any, tmp_path: Path, model: onnx.ModelProto, *, size: Any = DESK, scheme: str = "light"
) -> Opened:
    onnx.save(model, tmp_path / "m.onnx")
    write_page(tmp_path / "m.onnx", tmp_path / "m.html")
    return Opened(browser, tmp_path / "m.html", size, scheme)


@pytest.mark.long
def test_every_tab_draws_without_complaint(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, model_of(4))
    drawn = {
        "modules": "#module-chart g.frame", "graph": "#graph-picture canvas", "interface": "#value-table td",
        "weights": "#weight-table td", "sources": "#source-table td",
    }  # fmt: skip
    assert [tab.get_attribute("id") for tab in opened.page.query_selector_all("[role=tab]")] == [
        f"tab-{t}" for t in TABS
    ]
    for tab in TABS:
        opened.show(tab)
        opened.page.wait_for_selector(drawn[tab], state="attached")
    assert "42" in (opened.page.text_content("#cards") or "")
    assert "batch" in (opened.page.text_content("#dim-table") or "")
    assert "embed, head" in (opened.page.text_content("#tied-table") or "")
    assert opened.complaints == []


@pytest.mark.long
def test_search_and_zoom(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, model_of(4))
    page = opened.page
    assert page.text_content("#node-found") == ["42 of 42 nodes", " the first 100 shown"][0]
    page.fill("#node-search", "layers.2.attention/tanh")
    page.wait_for_function("document.getElementById('node-found').textContent.startsWith('2 of 42')")
    assert opened.count("#node-table tbody tr") == 2
    page.fill("#node-search", "")
    page.locator("#module-chart g.frame[name='3']").click()
    page.wait_for_function("document.getElementById('node-found').textContent.startsWith('10 of 10')")
    assert page.text_content("#node-title") == "Nodes of layers.3"
    page.click("#module-reset")
    page.wait_for_function("document.getElementById('node-found').textContent.startsWith('42 of 42')")
    page.click("text=size of weights")
    page.wait_for_selector("#module-chart g.frame[name='tied']", state="attached")
    opened.show("sources")
    page.locator("#source-table td", has_text="net.py:7").click()
    page.wait_for_function("document.getElementById('node-found').textContent.startsWith('4 of 42')")
    assert page.is_visible("#modules")
    assert opened.complaints == []


@pytest.mark.long
def test_the_graph_looks_into_modules(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, model_of(4))
    opened.show("graph")
    page = opened.page
    page.evaluate("lookInto('layers.1')")
    assert page.text_content("#graph-count").startswith("10 boxes, 9 arrows")
    page.select_option("#graph-depth", "2")
    assert page.evaluate("graphPicture.nodes().map((node) => node.data('label'))") == [
        "layers.1.attention\n5 nodes",
        "layers.1.mlp.act\n5 nodes",
    ]
    assert [button.text_content() for button in page.query_selector_all("#graph-path button")] == ["all", "layers", "1"]
    tapped = "graphPicture.nodes().filter((node) => node.data('box').key === 'layers.1.mlp.act')"
    page.evaluate(f"void {tapped}.emit('dbltap')")  # what it returns is the whole picture, which would be sent here
    assert page.evaluate("picture.root") == "layers.1.mlp.act"
    page.click("#graph-path button >> nth=0")
    assert page.evaluate("picture.root") == ""
    assert opened.complaints == []


TIMED = """async ([what, text]) => {
    const input = document.getElementById('node-search'), start = performance.now();
    if (what === 'search') { input.value = text; input.dispatchEvent(new Event('input')); }
    else document.querySelector(`#module-chart g.frame[name='${text}']`).dispatchEvent(new MouseEvent('click', { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    return performance.now() - start;
}"""
MOST_MS = 1000
"""A person waits for no more than 100 ms, which an idle machine keeps; the tests of a busy one take several times that."""


@pytest.mark.slow
def test_it_stays_fluid_at_5000_nodes(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, model_of(500))
    assert (tmp_path / "m.html").stat().st_size < 3_000_000
    asked = [
        ("search", "tanh"),
        ("search", "layers.77."),
        ("zoom", "layers"),
        ("zoom", "80 … 119"),
        ("zoom", "99"),
        ("search", ""),
        ("search", "net.py:3"),
    ]
    taken = [opened.page.evaluate(TIMED, list(each)) for each in asked]
    assert statistics.median(taken) < MOST_MS, taken
    assert opened.page.text_content("#node-found").startswith("1 of 10 nodes")
    opened.show("graph")
    opened.page.wait_for_selector("#graph-picture canvas", state="attached")
    opened.page.evaluate("lookInto('layers')")
    assert opened.page.evaluate("graphPicture.nodes().length") == 400
    assert "100 more boxes" in (opened.page.text_content("#graph-count") or "")
    assert opened.complaints == []


@pytest.mark.long_cases("phone")
@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), (DESK, "light")], ids=["phone", "desk"])
def test_it_fits(browser: Any, tmp_path: Path, size: dict[str, int], scheme: str) -> None:
    opened = opened_page(browser, tmp_path, model_of(3), size=size, scheme=scheme)
    for tab in TABS:
        opened.show(tab)
        too_wide = opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert too_wide <= 0, f"{tab} is {too_wide} pixels too wide"


def hostile_model() -> onnx.ModelProto:
    """Every name of a model is one that a browser might obey."""
    names = [name.encode(errors="replace").decode() for name in NAMES]
    nodes = []
    for index, name in enumerate(names):
        node = helper.make_node(
            name or "x",
            [f"v{index}" if index else names[0]],
            [f"v{index + 1}"],
            f"{name}.{name}/{name}",
            domain="custom",
        )
        node.metadata_props.add(key="source", value=name)
        nodes.append(node)
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [10, 2], range(20)) for name in names]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name, 2]) for name in (names[0], names[1])]
    graph = helper.make_graph(nodes, names[0], values[:1], values[1:], weights)
    model = helper.make_model(graph, producer_name=names[1])
    helper.set_model_props(model, {name: name for name in names})
    return model


def test_names_are_text(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, hostile_model())
    for tab in TABS:
        opened.show(tab)
    opened.page.evaluate("lookInto('__proto__')")
    opened.show("modules")
    for name in NAMES[:3]:
        opened.page.fill("#node-search", name)
    assert opened.page.evaluate("window.pwned") is None
    assert opened.complaints == []


VERDICT = {
    "ok": False,
    "rows": [
        {"engine": "runner", "output": "y", "max_abs_error": 1e-7, "allowed": 1e-6, "ok": True, "inputs": "sample", "problem": ""},
        {"engine": "reference", "output": "y", "max_abs_error": float("inf"), "allowed": 0.0, "ok": False, "inputs": "seed 1", "problem": "dtype float16"},
    ],
    "notes": ["no float64 judge", "</script><script>window.pwned=1</script>"],
    "versions": {"runner": "0.1.0", "torch": "2.13"},
    "seeds": [1, 2],
    "ranges": {"x": {"dtype": "float32", "least": -1.5}, "__proto__": {"dtype": "int64", "least": 0}},
    "tried": [{"name": "sample", "sizes": {"n": 2}}, {"name": "seed 1", "sizes": {"n": 3}}],
    "not yet known": {"deep": [{"a": 1}]},
}  # fmt: skip


def test_a_verdict(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "v.html").write_text(verdict_page("m.onnx", "zoo:<net>", VERDICT))
    opened = Opened(browser, tmp_path / "v.html")
    page = opened.page
    assert page.text_content("h1") == "zoo:<net>"
    assert page.text_content("#verdict") == "Differs from eager PyTorch"
    assert opened.count("#row-table tbody tr") == 2
    page.check("#row-failing")
    assert [cell.text_content() for cell in page.query_selector_all("#row-table tbody td")][:2] == ["reference", "y"]
    assert opened.count("#row-table tbody tr") == 1
    page.uncheck("#row-failing")
    page.fill("#row-search", "sample")
    assert "10%" in page.text_content("#row-table")
    opened.show("more")
    shown = page.text_content("#more")
    for text in ("versions", "2.13", "1, 2", "float32", "__proto__", "int64", "seed 1", "not yet known", "deep"):
        assert text in shown
    assert page.evaluate("window.pwned") is None
    assert opened.complaints == []


def test_pages_are_one_file_that_loads_nothing(tmp_path: Path) -> None:
    onnx.save(hostile_model(), tmp_path / "m.onnx")
    write_page(tmp_path / "m.onnx", tmp_path / "m.html")
    for text, scripts in (((tmp_path / "m.html").read_text(), 6), (verdict_page("m", "s", VERDICT), 3)):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', text)
        assert text.count("</script>") == scripts, "no name closes a script"
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
        assert not re.search("[<>&\u2028\u2029\u202e]", data)
        json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
