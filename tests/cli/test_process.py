"""The process of the command: its exit codes, and what its start and its end leave out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

START = "import sys; sys.argv[0] = 'fx2onnx'\nfrom fx2onnx.cli.process import run\n"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=buffered, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("process") / "m.onnx"
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [weight])
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)]), path)
    return path


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["run", "missing.onnx"], 2), (["--wrong"], 2)])
def test_exit_codes_are_those_of_the_command(arguments: list[str], code: int) -> None:
    assert python(START + "run()", *arguments).returncode == code


def test_a_run_imports_no_more_than_it_needs(model: Path) -> None:
    code = "import atexit\natexit.register(lambda: print(sorted(set(sys.modules) & UNUSED), file=sys.stderr))\nrun()\n"
    unused = {"torch", "onnx_ir", "onnxruntime", "sympy", "html", "fx2onnx.sizes.stated", "pydantic", "rich"}
    unused |= {f"fx2onnx.semantics.kernels.{family}" for family in ("attention", "trees", "vision")}
    done = python(f"UNUSED = {unused!r}\n{START}{code}", "run", str(model))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[]"), done.stderr


def test_imports_are_not_searched_for_garbage() -> None:
    code = "import gc\nfound = []\ngc.callbacks.append(lambda phase, _: found.append(phase))\n"
    done = python(START + code + "import atexit\natexit.register(lambda: print(len(found)))\nrun()", "--version")
    assert done.stdout.splitlines()[-1] == "0"


def test_the_end_searches_no_garbage() -> None:
    code = "import gc, atexit\natexit.register(lambda: print(gc.get_freeze_count() > 10_000, gc.get_count()[0] < 10_000))\nrun()"
    assert python(START + code, "--version").stdout.splitlines()[-1] == "True True"
