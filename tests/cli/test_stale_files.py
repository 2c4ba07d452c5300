"""``fx2onnx export`` with several sources takes no file of an earlier run that code, a file or a version has left behind."""

from __future__ import annotations

import json
import os
import py_compile
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from safetensors.torch import save_file

from fx2onnx.cli.made_from import version_of
from fx2onnx.sources import resolve
from tests.cli.support import invoke

_NET = """
import functools, json
import torch
from stale import layers
from stale.sub import inner
{top}

class Net(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return layers.scaled(x * 2, self.factor) + inner.SHIFT

def make(factor=1.0): return Net(factor), (torch.ones(3),)
def read(path="cfg.json"): return make(json.load(open(path)))
@functools.lru_cache
def kept(path): return json.load(open(path))
def read_kept(path="cfg.json"): return make(kept(path))
def from_torch(path): return make(float(torch.load(path)["f"]))
def from_safetensors(path):
    from safetensors.torch import load_file
    return make(float(load_file(path)["f"]))
def from_numpy(path):
    import numpy
    return make(float(numpy.load(path)))
def from_script(path): return torch.jit.load(path), (torch.ones(3),)
def from_memory(path): return make(float(torch.from_file(path, size=1)[0]))
{bottom}
"""
_OTHER = "import torch\ndef make(width=3): return torch.nn.Linear(width, 2).eval(), (torch.ones(2, width),)\ndef twin(): return make()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package, a module beside it and files that factories read."""
    for name, text in {
        "stale/__init__.py": "",
        "stale/net.py": _NET.format(top="", bottom=""),
        "stale/layers.py": "def scaled(x, factor): return x * factor\n",
        "stale/sub/__init__.py": "",
        "stale/sub/inner.py": "from .. import layers\nSHIFT = 0\n",
        "stale_other.py": _OTHER,
        "named_late.py": "FACTOR = 1.0\n",
        "stale/named.py": "import importlib\nfrom stale.net import make\n"
        "def by_name(): return make(importlib.import_module('named_late').FACTOR)\n",
        "cfg.json": "1.0",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stale", "stale_other", "named_late")]:
        del sys.modules[name]


class Exports:
    """Runs of the command, each as in a process of its own."""

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def __call__(self, *sources: str, options: Sequence[str] = ()) -> list[str]:
        """The sources that this run exported, less the package's name."""
        self.ran.clear()
        _forget()
        every = [source if ":" in source else f"stale.net:{source}" for source in (*sources, "stale_other:make")]
        done = invoke("export", *every, "-o", "out", "--no-verify", *options)
        assert done.exit_code == 0, done.output
        return [source.removeprefix("stale.net:") for source in self.ran]


@pytest.fixture
def exports(in_this_process: list[str]) -> Exports:
    return Exports(in_this_process)


def written(source: str = "make") -> list[float]:
    """What the file of a source computes of three ones."""
    path = next(
        row["file"]
        for row in map(json.loads, reversed(Path("out/exports.jsonl").read_text().splitlines()))
        if row["source"] in (source, f"stale.net:{source}")
    )
    session = onnx.reference.ReferenceEvaluator(onnx.load(path))
    return [float(value) for value in session.run(None, {session.input_names[0]: np.ones(3, np.float32)})[0]]


def edit(path: str, old: str, new: str) -> None:
    """The same size and the same times, as a clock or a copy may leave them."""
    before = os.stat(path)
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("stale/net.py", "x * 2", "x * 3", 3.0),
        ("stale/layers.py", "x * factor", "x - factor", 1.0),
        ("stale/sub/inner.py", "SHIFT = 0", "SHIFT = 5", 7.0),
        ("stale/__init__.py", "", "import stale.sub.inner as s; s.SHIFT = 4", 6.0),
    ],
)
def test_code_that_changed(exports: Exports, path: str, old: str, new: str, expected: float) -> None:
    assert exports("make", "make?factor=2.0") == ["make", "make?factor=2.0", "stale_other:make"]
    assert written() == [2.0] * 3
    assert exports("make", "make?factor=2.0") == []
    py_compile.compile(path)
    edit(path, old, new)
    assert exports("make", "make?factor=2.0") == ["make", "make?factor=2.0"]
    assert written() == [expected] * 3
    assert exports("make", "make?factor=2.0") == []
    edit("stale_other.py", "width, 2", "width, 4")
    assert exports("make", "make?factor=2.0") == ["stale_other:make"]


@pytest.mark.long
def test_a_line_that_says_nothing_of_its_files_is_not_gone_on_from(exports: Exports) -> None:
    exports("make")
    rows = [json.loads(line) for line in Path("out/exports.jsonl").read_text().splitlines()]
    for damaged in ({}, {"made_from": None}, {"made_from": {"modules": {}}}):
        lines = [json.dumps({key: row[key] for key in row if key != "made_from"} | damaged) for row in rows]
        Path("out/exports.jsonl").write_text("\n".join(lines) + "\n")
        assert exports("make") == ["make", "stale_other:make"]


@pytest.mark.long
def test_code_that_is_imported_by_its_name(exports: Exports) -> None:
    late = "stale.named:by_name"
    exports("make", late)
    assert exports("make", late) == []
    edit("named_late.py", "1.0", "2.0")
    assert exports("make", late) == [late]
    assert written(late) == [4.0] * 3


def test_another_module_of_the_name_comes_first(
    exports: Exports, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports("make")
    (folder / "first").mkdir()
    (folder / "first" / "stale_other.py").write_text(_OTHER.replace("width, 2", "width, 6"))
    monkeypatch.setattr(sys, "path", [str(folder / "first"), *sys.path])
    assert exports("make") == ["stale_other:make"]


def test_the_whole_folder_may_move(exports: Exports, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports("make", "read")
    moved = folder.rename(folder.with_name("moved"))
    monkeypatch.chdir(moved)
    monkeypatch.setattr(sys, "path", [str(moved), *sys.path[1:]])
    assert exports("make", "read") == []


def _number(path: str, value: float) -> None:
    Path(path).write_text(str(value))


def _in_torch(path: str, value: float) -> None:
    torch.save({"f": torch.tensor(value)}, path)


def _in_safetensors(path: str, value: float) -> None:
    save_file({"f": torch.tensor(value)}, path)


def _in_numpy(path: str, value: float) -> None:
    np.save(path, np.float32(value))


def _in_memory(path: str, value: float) -> None:
    Path(path).write_bytes(np.float32([value]).tobytes())


def _in_script(path: str, value: float) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("f", torch.tensor(value))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 * self.f

    torch.jit.trace(Net(), torch.ones(3)).save(path)


@pytest.mark.parametrize(
    ("factory", "name", "write"),
    [
        ("read", "a.json", _number),
        ("read_kept", "a.json", _number),
        ("from_torch", "a.pt", _in_torch),
        ("from_safetensors", "a.safetensors", _in_safetensors),
        ("from_numpy", "a.npy", _in_numpy),
        ("from_memory", "a.bin", _in_memory),
        ("from_script", "a.pt", _in_script),
    ],
)
def test_a_file_that_the_factory_reads(
    exports: Exports, factory: str, name: str, write: Callable[[str, float], None]
) -> None:
    write(name, 1.0)
    before = os.stat(name)
    source = f"{factory}?path={name}"
    exports(source, "make")
    assert written(source) == [2.0] * 3
    assert exports(source, "make") == []
    write(name, 4.0)
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source in exports(source, "make")
    assert written(source) == [8.0] * 3
    assert exports(source, "make") == []
    Path(name).rename("b")
    Path("b").rename(name)
    assert exports(source, "make") == []


def test_files_that_are_read_when_the_module_is_imported(exports: Exports) -> None:
    _without_kept(top='FROM_FILE = json.load(open("cfg.json"))', bottom="def top(): return make(FROM_FILE)")
    exports("make", "top")
    assert exports("make", "top") == []
    Path("cfg.json").write_text("3.0")
    assert exports("make", "top") == ["make", "top"]
    assert written("top") == [6.0] * 3


def test_files_that_an_earlier_model_has_read(exports: Exports) -> None:
    Path("stale/net.py").write_text(_NET.format(top="", bottom="def again(): return read_kept()"))
    exports("read_kept", "again")
    assert exports("read_kept", "again") == []
    Path("cfg.json").write_text("3.0")
    assert exports("read_kept", "again") == ["read_kept", "again"]
    assert written("again") == [6.0] * 3


def _without_kept(top: str = "", bottom: str = "") -> None:
    net = _NET.replace("@functools.lru_cache\n", "").replace("functools, ", "")
    Path("stale/net.py").write_text(net.format(top=top, bottom=bottom))


def test_of_two_checkpoints_one_changes(exports: Exports) -> None:
    _without_kept()
    for name in ("a", "b"):
        Path(f"{name}.json").write_text("1.0")
    sources = ("read?path=a.json", "read?path=b.json")
    exports(*sources)
    Path("b.json").write_text("2.0")
    assert exports(*sources) == ["read?path=b.json"]


def test_a_state_dict(exports: Exports) -> None:
    state = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    torch.save(state, "w.pt")
    both, weights = ["stale_other:twin", "stale_other:make"], ["--weights", "w.pt"]
    assert exports(both[0], options=weights) == both
    assert exports(both[0], options=weights) == []
    torch.save(state | {"bias": torch.ones(2)}, "w.pt")
    assert exports(both[0], options=weights) == both
    assert exports(both[0]) == both
    assert exports(both[0], options=weights) == both


@pytest.mark.long_cases(but=["new file"])
@pytest.mark.parametrize("change", ["weight", "config", "new file"])
def test_a_checkpoint(exports: Exports, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("zoo:bert_tiny").module.save_pretrained("checkpoint")  # type: ignore[operator]
    call = ["export", "hf:checkpoint", "stale_other:make", "-o", "out", "--no-verify"]

    def ran() -> list[str]:
        exports.ran.clear()
        done = invoke(*call)
        assert done.exit_code == 0, done.output
        return list(exports.ran)

    assert ran() == ["hf:checkpoint", "stale_other:make"]
    assert ran() == []
    weights = Path("checkpoint/model.safetensors")
    before = weights.stat()
    if change == "weight":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "config":
        edit("checkpoint/config.json", '"gelu"', '"relu"')
    else:
        Path("checkpoint/generation_config.json").write_text("{}")
    assert ran() == ["hf:checkpoint"]
    assert ran() == []


@pytest.mark.parametrize("package", ["torch", "onnx", "fx2onnx", "typer", "python"])
def test_a_version_that_changed(exports: Exports, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit("stale_other.py", "import torch\n", "import torch, typer\n")
    exports("make")
    assert exports("make") == []
    real = metadata.version
    if package in ("fx2onnx", "python"):
        monkeypatch.setattr(
            "fx2onnx.cli.made_from.version_of", lambda name: "0" if name == package else version_of(name)
        )
    else:
        monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == package else real(name))
    assert exports("make") == (["stale_other:make"] if package == "typer" else ["make", "stale_other:make"])


@pytest.mark.long
def test_a_file_that_was_edited_or_removed(exports: Exports) -> None:
    edit("stale_other.py", "width, 2)", "width, 8_000_000 // width)")  # 32 MB: weights beside the graph
    exports("make")
    data = next(Path("out").glob("*.data"))
    content = data.read_bytes()
    assert exports("make") == []
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert exports("make") == ["stale_other:make"]
    assert data.read_bytes() == content
    data.unlink()
    assert exports("make") == ["stale_other:make"]
    graph = next(Path("out").glob("stale.net_make*.onnx"))
    graph.write_bytes(graph.read_bytes() + b"\x00")
    assert exports("make") == ["make"]


@pytest.mark.parametrize("options", [["--fused"], ["--opset", "17"], ["--functions", "all"], ["--seed", "3"]])
def test_other_options(exports: Exports, options: list[str]) -> None:
    extra = ["--target", "onnxruntime-1.20"] if "--fused" in options else []
    both = ["make", "stale_other:make"]
    assert exports("make", options=extra) == both
    assert exports("make", options=[*extra, *options]) == both
    assert exports("make", options=[*extra, *options]) == []


@pytest.mark.long
def test_a_process_of_its_own(folder: Path) -> None:
    """Python itself takes a ``.pyc`` file of the same size and time for the source's."""
    import subprocess

    import stale.net  # noqa: F401  writes the .pyc file

    def run() -> str:
        call = [sys.executable, "-m", "fx2onnx", "export", "stale.net:make", "stale_other:make"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*call, "-o", "out", "--no-verify"], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run()
    assert written() == [2.0] * 3
    edit("stale/net.py", "x * 2", "x * 3")
    assert "1 of them by an earlier run" in run()
    assert written() == [3.0] * 3
