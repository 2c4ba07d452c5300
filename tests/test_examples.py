"""What stands in ``examples/`` runs as its first lines say, and what it prints is true.

All but one run in this process, which has paid for the imports.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest

from fx2onnx.files import safetensors
from tests.report.browsing import chromium

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PACKAGES = ROOT / "out" / "web" / "node_modules"
"""The folder into which ``make browser-test`` puts onnxruntime-web."""
WITHOUT_TORCH = (
    "import runpy, sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


class Failed(Exception):
    """An example ended with another exit code than 0."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples write where they are called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """``run("digits", *arguments)``: as a shell would; gives what was printed."""

    def example(name: str, *arguments: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise Failed(str(end.code)) from None
        return capsys.readouterr().out

    return example


@functools.cache
def files() -> list[Path]:
    return sorted(path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".html"))


def test_each_is_short_and_runs_here() -> None:
    """A file that no test names does not stand there."""
    ran = Path(__file__).read_text()
    for path in files():
        assert len(path.read_text().splitlines()) <= 60, path
        assert f'"{path.relative_to(EXAMPLES).with_suffix("")}"' in ran or path.suffix == ".html", path


@pytest.mark.long
def test_digits(run: Any) -> None:
    said = run("digits")
    assert "verified: True" in said
    assert float(re.findall(r"accuracy ([\d.]+) of 360", said)[0]) > 0.95
    with pytest.raises(Failed, match="npm install onnxruntime-web"):
        run("browser/build", "digits.onnx", "site", "nowhere")
    assert not Path("site").exists()


@pytest.mark.long
def test_bert_with_dynamic_shapes(run: Any) -> None:
    differences = re.findall(r"\d+ x \d+: largest difference to PyTorch (\S+)", run("bert_dynamic"))
    assert len(differences) == 3
    assert all(float(number) < 1e-5 for number in differences)
    assert [size.dim_param for size in onnx.load("bert.onnx").graph.input[0].type.tensor_type.shape.dim] == [
        "batch", "sequence",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", ["language_model", "vision_language"])
def test_generation(name: str, run: Any) -> None:
    said = run(name)
    assert "as transformers' own generate: True" in said
    tokens = re.findall(r"\[\[.*\]\]", said)
    assert len(tokens) == 2
    assert tokens[0] != tokens[1]  # less of them by hand; of the images exchanged others


@pytest.mark.long
def test_detection(run: Any) -> None:
    found = re.findall(r"(\d+) boxes, at most (\S+) pixels", run("detection"))
    assert len({boxes for boxes, _ in found}) > 1
    assert all(float(error) < 0.01 for _, error in found)


def test_an_operator_of_ones_own(run: Any) -> None:
    from torch._library.custom_ops import OPDEFS

    from fx2onnx.aten_map import TABLE
    from fx2onnx.semantics.registry import unregister

    try:
        said = run("custom_op")
    finally:
        [TABLE.entries.pop(overload) for overload in [*TABLE.entries] if str(overload).startswith("demo.")]
        unregister("SoftClip", "demo")
        OPDEFS.pop("demo::soft_clip", None)
    assert "'demo::SoftClip'" in said
    assert "verified: True" in said
    assert "largest output: 0.5\n" in said


@pytest.mark.long
def test_a_wrong_node(run: Any) -> None:
    said = run("wrong_node")
    assert "as exported: right" in said
    assert "as edited: wrong" in said
    assert re.search(r"nodes +1/LeakyRelu", said)
    assert re.search(r">\s+\d+ \|\s+return x \+ self.down\(torch.nn.functional.leaky_relu", said)
    assert Path("case/test_data_set_0").is_dir()


@pytest.mark.long
def test_two_exports(run: Any) -> None:
    said = run("compare_exports")
    theirs, ours = said.split("torch.onnx and fx2onnx.onnx")[1].split("fx2onnx.onnx and changed.onnx")
    assert "Relu" not in theirs
    assert re.search(r"removed: Relu, of compare_exports.py:\d+", ours)
    assert "changed: head.weight, by at most 0.500" in ours


@pytest.mark.long
def test_many_models(run: Any, tmp_path: Path) -> None:
    said = run("many_models")
    assert said.count(" verified\n") == 3
    assert len(list((tmp_path / "models").glob("*.onnx"))) == 3
    with pytest.raises(Failed, match="1"):
        run("many_models", "models", "zoo:mnist_cnn_same", "zoo:no_such_model")


@pytest.mark.long
def test_lora_is_exported_with_torch_and_trained_without(run: Any, tmp_path: Path) -> None:
    run("lora_bert", "export", "lora")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(EXAMPLES / "lora_bert.py"), "train", "lora"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) > 0.9
    kept, _ = safetensors.places(tmp_path / "lora" / "adapters.safetensors")
    parameters = [name for name in kept if ".exp_avg" not in name and name != "step"]
    assert parameters
    assert all(".up" in name or ".down." in name or name.startswith("classifier.") for name in parameters)
    onnx.checker.check_model(tmp_path / "lora" / "tuned" / "model.onnx")


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = (EXAMPLES / "browser" / "index.html").read_text()
    assert "default-src 'self'" in page
    assert "width=device-width" in page
    assert not re.findall(r"https?://", page)


def test_the_page_in_a_browser(run: Any) -> None:
    """In Chromium the same digits are right as in the runner; one that is drawn has an answer."""
    if not PACKAGES.exists():
        assert "BROWSER_REQUIRED" not in os.environ, "make browser-test installs onnxruntime-web"
        pytest.skip("no onnxruntime-web in out/web: make browser-test gets it from npm")
    run("digits")
    expected = re.findall(r"(\d+ of \d+)", run("browser/build", "digits.onnx", "site", str(PACKAGES)))[0]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="site")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with chromium() as browser:
            page, asked, problems = browser.new_page(), [], []
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.get_by_text(f"{expected} digits that it was not trained on are right").wait_for(timeout=60_000)
            page.click("#next")
            page.get_by_text(re.compile(r"This is a \d\.")).wait_for()
            page.click("#clear")
            assert page.inner_text("#answer") == ""
            box = page.locator("#picture").bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 5, steps=12)
            page.get_by_text("This is a 1.").wait_for()
    finally:
        server.shutdown()
        server.server_close()
    assert all(url.startswith("http://127.0.0.1") for url in asked)
    assert not [text for text in problems if "favicon" not in text and "404" not in text]
