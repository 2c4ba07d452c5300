"""What a verification takes of memory, and what it says where that is not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base import memory as base_memory
from fx2onnx.base.errors import VerificationError
from fx2onnx.judge import engines, memory
from fx2onnx.verify import interface, verify, wide
from tests.cli.support import invoke

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
AXES = {"input": {0: "batch"}}


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 3)).eval()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE_BYTES", 1000)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2000)


@pytest.mark.usefixtures("little_memory")
def test_a_model_that_does_not_fit_is_said_to_be_unverified(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    fx2onnx.export(net, (X,), path, dynamic_shapes=AXES)
    verdict = verify(path, net, (X,))
    assert not verdict.ok
    assert not verdict.rows
    assert verdict.describe() == "not verified: its weights take 0 MB, and 0 MB of memory are free"
    assert verdict.as_dict()["unverified"] == verdict.unverified
    with pytest.raises(VerificationError, match="E502") as caught:
        fx2onnx.export(net, (X,), tmp_path / "again.onnx", verify=True)
    assert caught.value.why == verdict.unverified
    assert caught.value.first_wrong is None
    onnx.checker.check_model(tmp_path / "again.onnx")


@pytest.mark.long
@pytest.mark.usefixtures("little_memory")
def test_the_command_says_so(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    done = invoke("export", "zoo:mnist_cnn", "-o", str(path))
    assert done.exit_code == 1
    assert "E502" in done.output
    assert "of memory are free" in done.output
    assert path.exists()
    done = invoke("verify", str(path), "zoo:mnist_cnn", "--json")
    assert done.exit_code == 1
    assert "of memory are free" in json.loads(done.stdout)["unverified"]


def _failing(error: Exception) -> Any:
    def opened(model: Any) -> Any:
        def run(feeds: Any) -> Any:
            raise error

        return run

    return opened


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 TiB"), RuntimeError("std::bad_alloc")])
def test_engines_that_run_out_of_memory_make_no_file_wrong(
    error: Exception, net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    fx2onnx.export(net, (X,), path, dynamic_shapes=AXES)
    monkeypatch.setitem(engines.ENGINES, "onnxruntime", _failing(error))
    verdict = verify(path, net, (X,))
    assert verdict.ok
    assert any(text.startswith("sample: onnxruntime runs out of memory") for text in verdict.left_out)
    monkeypatch.setitem(engines.ENGINES, "runner", _failing(error))
    verdict = verify(path, net, (X,))
    assert not verdict.ok
    assert verdict.unverified.startswith("sample: runner runs out of memory")
    monkeypatch.setitem(engines.ENGINES, "runner", _failing(RuntimeError("another fault")))
    assert not verify(path, net, (X,)).unverified


@pytest.mark.long
def test_weights_in_the_file_itself_are_mapped(net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    big = nn.Sequential(net, nn.Linear(3, 30_000)).eval()
    fx2onnx.export(big, (X,), path, dynamic_shapes=AXES, external_data=False)
    for module in (memory, interface):
        monkeypatch.setattr(module, "LARGE_BYTES", 100_000)
    monkeypatch.setattr(memory, "_MAPPED_BYTES", 2000)
    seen: list[onnx.ModelProto] = []
    opened = engines.open_runner
    monkeypatch.setitem(
        engines.ENGINES,
        "runner",
        lambda model: seen.append(onnx.load(model, load_external_data=False)) or opened(model),  # type: ignore[func-returns-value]
    )
    assert verify(path, big, (X,)).ok
    beside = [w for w in seen[0].graph.initializer if w.data_location == onnx.TensorProto.EXTERNAL]
    assert len(beside) >= 3
    assert not any(w.raw_data for w in beside)
    with torch.no_grad():
        big[1].weight[17, 1] += 1
    assert not verify(path, big, (X,)).ok


_PEAK = """
import threading, time, torch, fx2onnx
from torch import nn
from fx2onnx import verify

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

class Peak(threading.Thread):
    most, goes_on = 0, True
    def run(self):
        while self.goes_on:
            self.most = max(self.most, anonymous())
            time.sleep(0.002)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(32_000, 1024), nn.Linear(1024, 32_000)
        self.head.weight = self.table.weight
    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)))

def share(net, x, dims):
    fx2onnx.export(net, (x,), "net.onnx", dynamic_shapes=dims)
    before, peak = anonymous(), Peak()
    peak.start()
    verdict = verify("net.onnx", net, (x,))
    peak.goes_on = False
    peak.join()
    assert verdict.ok and sum(bool(each.sizes) for each in verdict.tried) >= 1, verdict.describe()
    return (peak.most - before) / sum(each.numel() * 4 for each in net.parameters()) * 1024

torch.manual_seed(0)
small = nn.Conv2d(3, 3, 3)
fx2onnx.export(small, (torch.randn(1, 3, 8, 8),), "small.onnx", verify=True)
tied = share(Tied().eval(), torch.randint(0, 32_000, (1, 8)), {"tokens": {1: "length"}})
layers = [part for _ in range(40) for part in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
images, sizes = torch.randn(2, 256, 3, 3), {"input": {0: "n", 2: "h", 3: "w"}}
print(tied, share(nn.Sequential(*layers).eval(), images, sizes))
"""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(), (2, 3)])
def test_pieces_of_a_large_weight_are_computed_in_doubles(
    bias: bool, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "LARGE_BYTES", 1000)
    monkeypatch.setattr(wide, "_PIECE_BYTES", 4 * 8 * 7)
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 256, bias=bias), torch.randn(*rows, 8)
    with torch.no_grad(), wide.InFloat64():
        found = layer(wide.widened(x))
    exact = torch.nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.wide, exact.detach(), rtol=0, atol=1e-14)


_LIMITED = """
import ctypes, resource, psutil, torch, fx2onnx
from torch import nn
from fx2onnx import verify
net, x = nn.Sequential(*(nn.Linear(2000, 2000) for _ in range(10))).eval(), torch.randn(2, 2000)
fx2onnx.export(net, (x,), "net.onnx")
ctypes.CDLL("libgcc_s.so.1")  # which a C++ exception would look for when nothing is left
for free in (80, 200, 280):
    taken = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (taken + (free << 20), -1))
    print(verify("net.onnx", net, (x,)).describe().splitlines()[-1])
"""


def _said_by(script: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(fx2onnx.__file__).parents[1])}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets limits of a process")


@pytest.mark.long
@needs_linux
def test_engines_hold_one_copy_of_the_weights_together(tmp_path: Path) -> None:
    """Beside the module's and the file's pages, which the system has once and takes back: the runner's order of those of
    convolutions, for all sizes of images together. What a weight takes as doubles comes to that: of one that is nearly all
    of the model a piece, and onnxruntime makes no turned copy of it.
    """
    tied, convolutions = map(float, _said_by(_PEAK, tmp_path).split())
    assert tied < 0.8
    assert convolutions < 1.6


@pytest.mark.long
@needs_linux
def test_a_process_of_limited_memory_says_so(tmp_path: Path) -> None:
    """Too little for the weights; enough for one engine that maps them, but not for the library of the next; and enough for
    that, but not for its copy of the weights.
    """
    found = _said_by(_LIMITED, tmp_path).splitlines()[-3:]
    assert re.fullmatch(r"not verified: its weights take 152 MB, and \d\d MB of memory are free", found[0])
    assert re.fullmatch(r"not verified: .*onnxruntime runs out of memory \(MemoryError: .*loading it.*\)", found[1])
    assert re.fullmatch(r"not verified: .*(memory is not enough|runs out of memory).*", found[2])
    assert "loading it" not in found[2]


GROUPS_OF = {
    "version 2": ("0::/job/step", "memory.max", "memory.current", "inactive_file"),
    "version 1": ("4:cpu,memory:/job/step", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@pytest.mark.parametrize("version", GROUPS_OF)
@pytest.mark.parametrize("place", ["", "job", "job/step"])
def test_what_is_free_is_what_the_groups_of_the_process_leave(
    version: str, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process's own and those around it; the pages of files are no loss."""
    own, limit, taken, of_files = GROUPS_OF[version]
    (tmp_path / "groups").write_text(f"9:pids:/elsewhere\n{own}\n")
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / taken).write_text("2500\n")
    (folder / "memory.stat").write_text(f"anon 2000\n{of_files} 500\n")
    controllers = [
        (name, str(tmp_path), *rest)
        for name, _, *rest in base_memory._HIERARCHIES
        if bool(name) == (version[-1] == "1")
    ]
    monkeypatch.setattr(base_memory, "_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(base_memory, "_HIERARCHIES", controllers)
    (folder / limit).write_text("5000\n")
    assert base_memory.free_bytes() == 3000
    (folder / limit).write_text("max\n")
    assert base_memory.free_bytes() > 3000


def test_what_weights_take() -> None:
    inside = onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32), "a")
    typed = onnx.helper.make_tensor("b", onnx.TensorProto.INT64, [5], [1] * 5)
    beside = onnx.TensorProto(name="c", data_type=1, dims=[10], data_location=onnx.TensorProto.EXTERNAL)
    beside.external_data.add(key="length", value="40")
    graph = onnx.GraphProto(initializer=[inside, typed, beside])
    assert memory.weights_bytes(onnx.ModelProto(graph=graph)) == 48 + 40 + 40
