"""The compiler, which torch imports lazily, is imported by an export only where an operator or the module needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys, tempfile, threading
import numpy as np
import onnxruntime
import torch
from torch import nn
import fx2onnx
IS_LOADED = lambda: "torch._dynamo" in sys.modules
def session_of(module, args, **options):
    with tempfile.TemporaryDirectory() as folder:
        fx2onnx.export(module, args, folder + "/m.onnx", **options)
        return onnxruntime.InferenceSession(folder + "/m.onnx")
def agrees(module, *args, **options):
    session = session_of(module, args, **options)
    feeds = {each.name: arg.numpy() for each, arg in zip(session.get_inputs(), args)}
    np.testing.assert_allclose(session.run(None, feeds)[0], module(*args).detach().numpy(), rtol=1e-4, atol=1e-5)
"""
WITHOUT = """
agrees(nn.Linear(3, 4), torch.randn(2, 3))
agrees(nn.Linear(3, 4), torch.randn(2, 3), dynamic_shapes=[{0: "batch"}])
layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Linear(3, 5), nn.Softmax(-1)
agrees(nn.Sequential(*layers).eval(), torch.randn(2, 3, 8, 8))
agrees(nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.GELU()), torch.randint(0, 9, (2, 5)))
assert not IS_LOADED()
"""
OPERATOR = """
agrees(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8))
assert not any(type(each).__module__ == "fx2onnx.torchcompat.late_imports" for each in sys.meta_path)
assert torch.compile(nn.Linear(3, 4), backend="eager")(torch.ones(2, 3)).shape == (2, 4)
"""
MODULE = """
class Asks(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
    def forward(self, x):
        self.count += 1
        try:
            import torch._dynamo
        except Exception:  # an import that is missing is no import that was stopped
            return x
        return x * (3 if torch._dynamo.config is not None else 2) + self.count
module = Asks()
session = session_of(module, (torch.ones(2),))
assert IS_LOADED() and module.count == 0
np.testing.assert_array_equal(session.run(None, {session.get_inputs()[0].name: np.ones(2, np.float32)})[0], [4, 4])
"""
CATCHES_ALL = """
class Asks(nn.Module):
    def forward(self, x):
        try:
            import torch._dynamo
        except:  # the widest that a module may have: it catches what stops the import
            return x
        return x + 1
session = session_of(Asks(), (torch.ones(2),))
np.testing.assert_array_equal(session.run(None, {session.get_inputs()[0].name: np.ones(2, np.float32)})[0], [2, 2])
class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("its own")
try:
    session_of(Fails(), (torch.ones(2),))
except fx2onnx.UserError as error:
    assert "its own" in str(error)
"""
THREAD = """
class Slow(nn.Module):
    def forward(self, x):
        threading.Thread(target=imports).start()
        threading.Event().wait(0.5)
        return x + 1
failed, done = [], threading.Event()
def imports():
    try:
        import torch._dynamo
    except BaseException as error:
        failed.append(error)
    done.set()
session_of(Slow(), (torch.randn(3),))
assert done.wait(60) and not failed and IS_LOADED()
agrees(nn.Linear(3, 4), torch.randn(2, 3))
"""
THREADS = """
def export(module, *args):
    try:
        session_of(module, args)
    except BaseException as error:
        failed.append(error)
def imports():
    import torch._dynamo
failed, module = [], nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
threads = [threading.Thread(target=export, args=(module, torch.randn(2, 3, 8))) for _ in range(3)]
threads.append(threading.Thread(target=imports))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""
PROGRAMS = {
    "without": WITHOUT, "operator": OPERATOR, "module": MODULE, "catches all": CATCHES_ALL, "thread": THREAD,
    "threads": THREADS,
}  # fmt: skip


@pytest.mark.long_cases(but=["without", "module"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiler_is_imported_where_it_is_needed(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", START + PROGRAMS[name]], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
