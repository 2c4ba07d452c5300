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
from fx2onnx.report.document import verdict_page
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
    page.wait_for_selector("#module-chart g.frame[name='layers']", state="attached")
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


@pytest.mark.parametrize("kind", ["nodes", "size of weights"])
def test_bars_are_modules(browser: Any, tmp_path: Path, kind: str) -> None:
    opened = opened_page(browser, tmp_path, model_of(2))
    opened.page.click(f"#module-kind >> text={kind}")
    names = opened.page.locator("#module-chart g.frame").evaluate_all("(all) => all.map((g) => g.getAttribute('name'))")
    assert {"layers", "0", "1", "attention"} <= set(names)
    assert not {*names} - {str(tmp_path / "m.onnx"), "layers", "0", "1", "attention", "mlp", "act", "embed", "head"}


def without_modules(op_types: dict[str, tuple[str, str]]) -> onnx.ModelProto:
    """``{output: (name of the node, input)}``, all of one operator, no weights, no sizes by name."""
    nodes = [helper.make_node("Relu", [source], [out], name) for out, (name, source) in op_types.items()]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", *list(op_types)[-1:])]
    return helper.make_model(helper.make_graph(nodes, "main", values[:1], values[1:]))


def test_what_a_model_lacks_is_not_shown_empty(browser: Any, tmp_path: Path) -> None:
    opened = opened_page(browser, tmp_path, without_modules({"y": ("one", "x"), "z": ("two", "y")}))
    assert opened.page.text_content("#module-hint") == "The file names no modules."
    assert not any(map(opened.page.is_visible, ("#module-chart", "#module-kind", "#module-reset")))
    opened.show("graph")
    assert opened.page.evaluate("graphPicture.nodes().length") == 2, "not one box of all"
    assert opened.page.evaluate("graphPicture.zoom()") < 1.5
    assert "line" not in opened.texts("#node-table th")
    opened.show("interface")
    assert not opened.page.is_visible("text=Dynamic sizes")
    assert opened.texts("#cards small") == ["1 operator", "0 tensors", "in the file", "1 output", ""]
    (tmp_path / "tied").mkdir()
    weighted = model_of(1)
    del weighted.graph.node[-1], weighted.graph.output[-1]  # so that nothing is tied
    opened = opened_page(browser, tmp_path / "tied", weighted)
    opened.show("weights")
    assert opened.page.is_visible("text=All weights")
    assert not opened.page.is_visible("h2:has-text('Tied')")
    assert opened.complaints == []


GRAPHS = {
    "chains": ({"a": ("a", "x"), "b": ("b", "x"), "c": ("c", "b")}, [["a"], ["b", "c"]]),
    "around a module": ({"a": ("a", "x"), "b": ("m/b", "a"), "c": ("c", "b"), "d": ("d", "c")}, [["a"], ["m/b"], ["c", "d"]]),
    "beside a module": ({"a": ("a", "x"), "b": ("m/b", "a"), "c": ("c", "a"), "d": ("d", "b")}, [["a", "c"], ["m/b"], ["d"]]),
    "own nodes of a module": (
        {"a": ("m/a", "x"), "b": ("m.inner/b", "a"), "c": ("m/c", "b"), "d": ("n/d", "c")}, [["m/a", "m.inner/b", "m/c"], ["n/d"]],
    ),
    "a module in two places": ({"a": ("m/a", "x"), "b": ("b", "a"), "c": ("m/c", "b")}, [["m/a", "m/c"], ["b"]]),
}  # fmt: skip


def test_boxes_of_the_graph_hold_what_belongs_together(browser: Any, tmp_path: Path) -> None:
    """Nodes outside of modules share a box where they are connected, and no path leaves such a box and comes back."""
    for at, (nodes, boxes) in enumerate(GRAPHS.values()):
        folder = tmp_path / str(at)
        folder.mkdir()
        opened = opened_page(browser, folder, without_modules(nodes))
        names = opened.page.evaluate("""(() => {
            const keys = runs(NODES.map(({ scope }) => scope.split('.')[0]), (unit) => unit === '');
            return [...new Set(keys)].map((key) => NODES.filter((_, index) => keys[index] === key).map(({ name }) => name));
        })()""")
        assert names == boxes
        opened.show("graph")
        opened.page.evaluate("drawGraph(1)")
        assert opened.page.evaluate("graphPicture.nodes().length") == len(boxes)
        opened.page.close()


def test_own_nodes_of_modules_stand_around_the_modules_inside(browser: Any, tmp_path: Path) -> None:
    nodes = {"a": ("m/a", "x"), "b": ("m.inner/b", "a"), "c": ("m/c", "b"), "d": ("n/d", "c")}
    opened = opened_page(browser, tmp_path, without_modules(nodes))
    opened.show("graph")
    opened.page.evaluate("drawGraph(2)")
    assert opened.page.evaluate("graphPicture.nodes().map((node) => node.data('label'))") == [
        "m: Relu",
        "m.inner",
        "m: Relu",
        "n",
    ]
    assert opened.page.evaluate("graphPicture.edges().length") == 3


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
        ("search", "tanh"), ("search", "layers.77."), ("zoom", "layers"), ("zoom", "80 … 119"), ("zoom", "99"),
        ("search", ""), ("search", "net.py:3"),
    ]  # fmt: skip
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
    assert opened.is_at_top()
    for tab in TABS:
        opened.show(tab)
        assert size is PHONE or opened.too_wide() == []
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
    for text in ("Versions", "2.13", "1, 2", "float32", "__proto__", "int64", "seed 1", "Not yet known", "deep"):
        assert text in shown
    assert page.evaluate("window.pwned") is None
    assert opened.complaints == []


def row(**more: Any) -> dict[str, Any]:
    usual = {"engine": "runner", "output": "y", "max_abs_error": 2.98e-8, "allowed": 0.00000216, "ok": True}
    return usual | {"inputs": "sample", "problem": "", "scale": 1.0, "by": "difference"} | more


def test_verdicts_are_told_in_shares_and_words(browser: Any, tmp_path: Path) -> None:
    good = [row(), row(max_abs_error=8.8e12, allowed=2e13, scale=1e19, inputs="large")]
    bad = [
        row(max_abs_error=7e-6, ok=False), row(max_abs_error=217.0, allowed=0.02154, ok=False),
        row(max_abs_error=3.0, allowed=0.0, ok=False, problem="3 of 16 numbers differ"),
        row(max_abs_error=float("inf"), allowed=0.0, ok=False, problem="dtype float16"),
    ]  # fmt: skip
    for rows, shares in (
        (good, ["1.4%", "44%"]),
        (good + bad, ["1.4%", "44%", "3.2 times", "over 1000 times", "", ""]),
    ):
        verdict = {"ok": rows is good, "rows": rows, "notes": [], "baked": [], "incomplete": ""}
        (tmp_path / "v.html").write_text(verdict_page("m.onnx", "net:make", verdict))
        opened = Opened(browser, tmp_path / "v.html")
        assert opened.is_at_top()
        assert opened.too_wide() == []
        assert opened.texts("#row-table td:nth-child(3)") == ["agrees" if one["ok"] else "differs" for one in rows]
        assert opened.texts("#row-table td:nth-child(4)") == shares
        headings = opened.texts("#row-table th")
        assert ("problem" in headings) == (rows is not good)
        errors = opened.texts(f"#row-table td:nth-child({headings.index('largest error') + 1})")
        assert errors[:2] == ["2.98e-8", "8.80e+12"], "one notation"
        assert "%" not in (opened.page.text_content("#cards") or "") or rows is good
        assert opened.count("[role=tab]") == 1, "nothing empty"
        assert not opened.page.is_visible("text=Notes")
        assert opened.complaints == []


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_parts_of_a_file_are_no_outputs(browser: Any, tmp_path: Path, size: dict[str, int]) -> None:
    """Weights and scales that differ are told apart from what engines computed; numbers that nobody compared are no zeros."""
    inf = {"max_abs_error": float("inf"), "allowed": 0.0, "scale": 0.0, "by": "", "ok": False}
    weights = {"inputs": "weights", "problem": "256 of 256 numbers are not the module's"}
    rows = [
        row(engine="weights", output="features.1.0.block.1.fc1.weight", **weights, **inf),
        row(engine="scales", output="features.7.0.block.2.fc2.bias", **weights, **inf),
        row(engine="file", output="mask", inputs="inputs", problem="the input vanished", **inf),
        row(engine="onnxruntime", output="(all)", problem="does not run", **inf),
        row(engine="onnxruntime", output="y", inputs="seed 1", ok=False),
    ]
    ranges = {"x": {"dtype": "float32", "least": -3.78e19, "largest": 1.67e20, "shapes": [[2, 8], [48, 8]]}}
    verdict = {"ok": False, "rows": rows, "notes": [], "baked": [], "incomplete": "", "ranges": ranges}
    (tmp_path / "v.html").write_text(verdict_page("m.onnx", "net:make", verdict))
    opened = Opened(browser, tmp_path / "v.html", size)
    cards = opened.texts("#cards dd")
    assert cards[1:3] == ["1onnxruntime", "1on 2 sets of inputs"]
    assert len(opened.texts("#row-table tbody tr")) == 2
    assert opened.texts("#part-table tbody td:nth-child(2)") == [one["output"] for one in rows[:3]]
    assert "0" not in opened.texts("#row-table td")
    assert [place for place in opened.too_wide() if size is DESK or "row-table" not in place] == []
    opened.page.fill("#row-search", "seed 1")
    assert not opened.page.is_visible("#part-table")
    opened.show("more")
    assert opened.too_wide() == []
    assert opened.complaints == []


@pytest.mark.long
def test_a_verdict_fits_on_a_phone(browser: Any, tmp_path: Path) -> None:
    rows = [
        row(engine="onnxruntime", output="encoder_last_hidden_state", inputs="sizes batch 2, length 15, large", by="x")
    ]
    tried = [
        {"name": rows[0]["inputs"], "sizes": "batch 2, length 15", "values": "large", "engines": "runner, onnxruntime"}
    ]
    verdict = {"ok": True, "rows": rows, "notes": [], "baked": [], "incomplete": "", "tried": tried}
    (tmp_path / "v.html").write_text(verdict_page("m.onnx", "net:make", verdict))
    opened = Opened(browser, tmp_path / "v.html", {"width": 390, "height": 780})
    assert opened.too_wide() == []
    opened.show("more")
    assert opened.too_wide() == []
    cells = opened.page.locator("#more td:visible")
    assert [cells.nth(place).inner_text() for place in range(cells.count())] == [tried[0]["name"], tried[0]["engines"]]
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
