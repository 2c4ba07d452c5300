"""The process of the command: what its quick end must not leave out, and what its start leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fx2onnx.cli.process import run

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


def test_modules_are_not_taken_apart_at_the_end() -> None:
    code = "class Last:\n    def __del__(self): print('taken apart')\nlast = Last()\n"
    assert "taken apart" not in python(START + code + "run()", "--version").stdout
    assert "taken apart" in python(START + code, "--version").stdout


def test_exit_functions_run_threads_end_and_all_is_written() -> None:
    code = """
import atexit, threading, time
atexit.register(print, "exit function")
threading.Thread(target=lambda: (threading.main_thread().join(), time.sleep(0.1), print("thread"))).start()
print("x" * 100_000, end="")
run()
"""
    done = python(START + code, "--version")
    assert done.stdout.count("x" * 100_000) == 1
    assert done.stdout.endswith("thread\nexit function\n")


@pytest.mark.parametrize(
    "watch", ["import sys; sys.settrace(lambda *_: None)", "import sys; sys.setprofile(lambda *_: None)"]
)
def test_who_watches_the_process_sees_its_end(watch: str) -> None:
    code = "try:\n    run()\nfinally:\n    print('seen')\n"
    assert python(f"{START}{watch}\n{code}", "--version").stdout.endswith("seen\n")
    assert "seen" not in python(START + code, "--version").stdout


def test_a_text_of_an_exit_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.cli.main.main", lambda: sys.exit("why"))
    with pytest.raises(SystemExit, match="why"):
        run()


def test_nobody_reading_any_more_ends_as_python_ends() -> None:
    code = "import os\nos.close(1)\nsys.stdout.write('never written')\n"
    plain = python(START + code + "sys.exit(0)")
    assert plain.returncode
    monkeyed = "import fx2onnx.cli.main\nfx2onnx.cli.main.main = lambda: sys.exit(0)\n"
    assert python(START + code + monkeyed + "run()").returncode == plain.returncode


def test_a_run_imports_no_more_than_it_needs(model: Path) -> None:
    code = "import atexit\natexit.register(lambda: print(sorted(set(sys.modules) & UNUSED), file=sys.stderr))\nrun()\n"
    unused = {"torch", "onnx_ir", "onnxruntime", "sympy", "html", "fx2onnx.sizes.stated", "pydantic"}
    done = python(f"UNUSED = {unused!r}\n{START}{code}", "run", str(model))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[]"), done.stderr


def test_imports_are_not_searched_for_garbage() -> None:
    code = "import gc\nfound = []\ngc.callbacks.append(lambda phase, _: found.append(phase))\n"
    done = python(START + code + "import atexit\natexit.register(lambda: print(len(found)))\nrun()", "--version")
    assert done.stdout.splitlines()[-1] == "0"
