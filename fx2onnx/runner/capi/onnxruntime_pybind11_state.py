"""onnxruntime's exceptions by their names there. Each is ``UserError``, whose ``code`` tells them apart."""

from fx2onnx.base.errors import UserError

EPFail = EngineError = Fail = InvalidArgument = InvalidGraph = InvalidProtobuf = UserError
ModelLoaded = NoModel = NoSuchFile = NotFound = NotImplemented = RuntimeException = UserError
