"""Is the exported file right, and where is it wrong? Eager PyTorch beside the engines, over several inputs and sizes.

``fx2onnx.verify(...)`` is ``fx2onnx.verify.compare.verify``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.public_names import make_callable, old_name

if TYPE_CHECKING:
    from fx2onnx.judge.verdict import Row as Row
    from fx2onnx.judge.verdict import Verdict as Verdict
    from fx2onnx.verify.compare import verify as verify
    from fx2onnx.verify.locating.first_wrong import FirstWrong as FirstWrong
    from fx2onnx.verify.locating.locate import locate as locate
    from fx2onnx.verify.training import verify_training as verify_training

make_callable(__name__)


def __getattr__(name: str) -> Any:
    return old_name(__name__, name)
