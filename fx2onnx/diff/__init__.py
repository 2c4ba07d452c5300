"""The differences between any two ONNX files. ``fx2onnx.diff(...)`` is ``fx2onnx.diff.compare.diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.public_names import make_callable, old_name

if TYPE_CHECKING:
    from fx2onnx.diff.compare import Difference as Difference
    from fx2onnx.diff.compare import diff as diff

make_callable(__name__)


def __getattr__(name: str) -> Any:
    return old_name(__name__, name)
