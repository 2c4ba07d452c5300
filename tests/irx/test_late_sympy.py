"""``onnx_ir`` is imported without sympy, and calculates with names of sizes all the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SAYS = """
import json, sys
{first}
import fx2onnx.irx
import onnx_ir as ir
before = "sympy" in sys.modules
dim = ir.SymbolicDim("max(n, 3) + floor(m / 2)") + 1
value = dim.evaluate(dict(n=2, m=5))
import sympy
doubled = ir.SymbolicDim(sympy.Symbol("x") * 2)
print(json.dumps([before, value, sympy.__name__, sympy.Max(1, 2) == 2, doubled.value]))
"""


def said(first: str = "") -> list[object]:
    done = subprocess.run([sys.executable, "-c", SAYS.format(first=first)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_it_is_imported_without_sympy() -> None:
    assert said() == [False, 6, "sympy", True, "2*x"]


@pytest.mark.long
@pytest.mark.parametrize(
    "first",
    [
        pytest.param("import sympy", id="sympy is there already"),
        pytest.param("import onnx_ir", id="so is onnx_ir"),
        pytest.param(
            "import fx2onnx.base, types\n"
            "class Strict:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'onnx_ir._symbolic_shapes' and not hasattr(sys.modules['sympy'], '__version__'):\n"
            "            raise TypeError('a class of sympy is wanted here')\n"
            "sys.meta_path.insert(0, Strict())",
            id="a version that does more with it",
        ),
    ],
)
def test_sympy_is_the_real_one_where_it_is_wanted_at_once(first: str) -> None:
    assert said(first) == [True, 6, "sympy", True, "2*x"]
