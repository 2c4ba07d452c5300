"""Is the exported file right, and where is it wrong? Eager PyTorch beside the engines, over several inputs and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.packages import import_part

if TYPE_CHECKING:
    from fx2onnx.judge.verdict import Row, Verdict
    from fx2onnx.verify.compare import verify
    from fx2onnx.verify.locating.first_wrong import FirstWrong
    from fx2onnx.verify.locating.locate import locate
    from fx2onnx.verify.training import verify_training

__all__ = ["FirstWrong", "Row", "Verdict", "locate", "verify", "verify_training"]

_LAZY = {
    "FirstWrong": "fx2onnx.verify.locating.first_wrong",
    "Row": "fx2onnx.judge.verdict",
    "Verdict": "fx2onnx.judge.verdict",
    "locate": "fx2onnx.verify.locating.locate",
    "verify": "fx2onnx.verify.compare",
    "verify_training": "fx2onnx.verify.training",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_part(_LAZY[name]), name)
