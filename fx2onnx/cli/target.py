"""``--target``: the runtime that the file is for, which bounds the opset."""

from __future__ import annotations

import re

from fx2onnx.base.errors import UserError

# Newest opset that each release of onnxruntime before 1.17 knows.
# Source: the compatibility table of onnxruntime's documentation.
_OPSETS = {8: 14, 9: 15, 10: 15, 11: 16, 12: 17, 13: 17, 14: 18, 15: 19, 16: 19}
_NAMES = ("onnxruntime", "runner")
_USAGE = f"onnxruntime, runner, or a release such as onnxruntime-1.{min(_OPSETS)} and newer"


def opset_for(target: str | None, opset: int | None) -> int | None:
    """The opset to export with: the one asked for, else the newest that ``target`` takes; None for the default.

    Raises:   UserError E001 for an unknown target, E202 for an opset that the target does not know.
    """
    newest = _newest(target)
    if newest is not None and opset is not None and opset > newest:
        raise UserError(
            "E202", f"{target} does not know opset {opset}", why=f"its newest is {newest}", next="leave out --opset"
        )
    return opset if opset is not None else newest


def _newest(target: str | None) -> int | None:
    """None where the default opset will do."""
    if target is None or target in _NAMES:
        return None
    release = re.fullmatch(r"onnxruntime-1\.(\d+)(\.\d+)?", target)
    if release is None or int(release[1]) < min(_OPSETS):
        raise UserError("E001", f"--target '{target}' is not known", next=_USAGE)
    return _OPSETS.get(int(release[1]))


def engines_for(target: str | None) -> list[str] | None:
    """The engines to verify in: only the runner where the file is for it, else all that are installed."""
    return ["runner"] if target == "runner" else None
