"""onnxruntime's exceptions by their names there, and what else its compiled module has: the names of ``fx2onnx.runner``.

Each exception is ``UserError``, whose ``code`` tells them apart.
"""

import sys
from typing import Any

from fx2onnx.base.errors import UserError

EPFail = EngineError = Fail = InvalidArgument = InvalidGraph = InvalidProtobuf = UserError
ModelLoadCanceled = ModelLoaded = ModelRequiresCompilation = NoModel = NoSuchFile = NotFound = UserError
NotImplemented = RuntimeException = UserError


def __getattr__(name: str) -> Any:
    return getattr(sys.modules["fx2onnx.runner"], name)
