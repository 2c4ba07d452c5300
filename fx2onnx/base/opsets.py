"""The opsets that fx2onnx writes. Imports no onnx, so that a wrong one is refused before anything is captured."""

from __future__ import annotations

from typing import Any

from fx2onnx.base.errors import UserError

OPSET_MIN, OPSET_MAX = 11, 26

IR_VERSIONS = {
    11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13,
    26: 13,
}  # fmt: skip
"""The IR version that each opset came with (onnx's release table): what runtimes of that age accept."""


def check_opset(opset: Any, argument: str = "opset_version") -> None:
    """Raise UserError E001 where ``opset`` is none of OPSET_MIN to OPSET_MAX; ``argument`` is what the user calls it."""
    if not isinstance(opset, int) or opset not in IR_VERSIONS:
        text = str(opset).removesuffix(".0")
        is_known = text.isdecimal() and int(text) in IR_VERSIONS
        step = f"give a number: {argument}={text}" if is_known else f"use {OPSET_MIN} to {OPSET_MAX}"
        raise UserError("E001", f"{argument}={opset!r} is not supported", next=step)
