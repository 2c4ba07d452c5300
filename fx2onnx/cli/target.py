"""``--target``: the runtime that the file is for, which bounds the opset."""

from __future__ import annotations

import re

from fx2onnx.base.errors import UserError

# Newest opset that each release of onnxruntime runs. 1.15 opens files of opset 19 but has no kernels for them.
# Source: from 1.15 on measured (docs/cli.md); before, the compatibility table of onnxruntime's documentation.
_OPSETS = {8: 14, 9: 15, 10: 15, 11: 16, 12: 17, 13: 17, 14: 18}
_OPSETS |= {15: 18, 16: 19, 17: 20, 18: 21, 19: 21, 20: 21, 21: 22, 22: 22, 23: 23, 24: 25}
_OPSETS |= dict.fromkeys(range(25, 32), 26)
_NAMES = ("onnxruntime", "runner")
_USAGE = f"onnxruntime, runner, or a release such as onnxruntime-1.{min(_OPSETS)} and newer"


def opset_for(target: str | None, opset: int | None, usual: int | None = None) -> int | None:
    """The opset to export with: the one asked for, else None for the default, or what ``target`` takes if that is older.

    ``usual`` is the default where it is not that of ``fx2onnx.export``.

    Raises:   UserError E001 for an unknown target, E202 for an opset that the target does not know.
    """
    newest = _newest(target)
    if newest is None:
        return opset
    if opset is not None and opset > newest:
        raise UserError(
            "E202", f"{target} does not know opset {opset}", why=f"its newest is {newest}", next="leave out --opset"
        )
    from fx2onnx.exporting.options import DEFAULT_OPSET

    return opset or (newest if newest < (usual or DEFAULT_OPSET) else None)


def _newest(target: str | None) -> int | None:
    """The newest opset that ``target`` takes; None where nothing is known of one, as of releases to come."""
    if target is None or target in _NAMES:
        return None
    release = re.fullmatch(r"onnxruntime-1\.(\d+)(\.\d+)?", target)
    if release is None or int(release[1]) < min(_OPSETS):
        raise UserError("E001", f"--target '{target}' is not known", next=_USAGE)
    return _OPSETS.get(int(release[1]))


def engines_for(target: str | None) -> list[str] | None:
    """The engines to verify in: None where the file is for none in particular, so that one may lack a kernel; a file for
    onnxruntime has to run in all that are installed.
    """
    if target is None:
        return None
    from fx2onnx.verify.engines import available_engines

    return ["runner"] if target == "runner" else available_engines()
