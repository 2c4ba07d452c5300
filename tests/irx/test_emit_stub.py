"""The typed signatures of ``Emit``'s operators are those of ONNX's schemas, and mypy reads them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fx2onnx.irx.emit import Emit
from tools.emit_stub import STUB, stub

SIGNATURES = [
    "def Add(self, A: Operand, B: Operand, *, outputs: int | Sequence[OutputType] = 1) -> ir.Value: ...",
    "def Squeeze(self, data: Operand, axes: Operand = None, *, outputs: int | Sequence[OutputType] = 1) -> ir.Value: ...",
    "def Concat(self, *inputs: Operand, axis: int | None, outputs: int | Sequence[OutputType] = 1) -> ir.Value: ...",
]
"""Inputs only; an attribute that became an input; a variadic input and a required attribute."""
CALLS = [
    ("op.Squeeze(x, axes=[0])", "Value"),
    ("op.ReduceSum(x, axes=[0], outputs=op.result)", "Value"),
    ("op.TopK(x, [1])", "Value"),
    ("op.TopK(x, [1], outputs=2)", "tuple[Value, ...]"),
    ("op.TopK(x, [1], outputs=[*op.result])", "Any"),
    ("op.node('Add', x, x)", "Value"),
    ("op.node('TopK', x, x, outputs=2)", "tuple[Value, ...]"),
    ("op.Ad(x, x)", "attr-defined"),
    ("op.Concat(x, x)", "call-arg"),
    ("op.Add(x, x, axis=0)", "call-arg"),
    ("op.Squeeze(x, axes='last')", "arg-type"),
]


def test_the_stub_is_what_the_schemas_give() -> None:
    assert STUB.read_text() == stub(), "run `make emit-stub`"


@pytest.mark.parametrize("signature", SIGNATURES)
def test_signatures(signature: str) -> None:
    assert f"    {signature}\n" in stub()


def test_several_outputs_are_overloads() -> None:
    lines = stub().splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("    def TopK(")]
    ends = [next(line for line in lines[start:] if line.endswith(": ...")) for start in starts]
    assert [line.split("-> ")[1] for line in ends] == ["ir.Value: ...", "tuple[ir.Value, ...]: ...", "Any: ..."]


def test_a_name_that_is_no_operator_is_no_attribute() -> None:
    with pytest.raises(AttributeError):
        _ = Emit.__new__(Emit).relu


@pytest.mark.slow  # mypy reads all that Emit imports
def test_mypy_knows_the_results(tmp_path) -> None:
    head = ["import onnx_ir as ir", "from fx2onnx.irx.emit import Emit", "def calls(op: Emit, x: ir.Value) -> None:"]
    file = tmp_path / "calls.py"
    file.write_text("\n".join([*head, *(f"    reveal_type({call})" for call, _ in CALLS)]) + "\n")
    command = [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=STUB.parents[2])
    said = done.stdout.replace("onnx_ir._core.", "").splitlines()
    for number, (call, expected) in enumerate(CALLS, start=len(head) + 1):
        wanted = f"[{expected}]" if "-" in expected else f'Revealed type is "{expected}"'
        assert any(f"calls.py:{number}:" in line and line.endswith(wanted) for line in said), (call, done.stdout)
