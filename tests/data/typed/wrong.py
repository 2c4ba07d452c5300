"""Mistakes of a user, each of which ``mypy --strict`` finds."""

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx import verify
from fx2onnx.sources import Options

result = fx2onnx.export(None, (), opset_version="20")  # wrong
result.saev("again.onnx")  # wrong
fx2onnx.Training(loss=3)  # wrong
lines: list[int] = result.report.warnings  # wrong
options = ort.SessionOptions()
options.execution_mode = "parallel"  # wrong
session = ort.InferenceSession("net.onnx", options)
session.run(None)  # wrong
verdict: bool = verify(result, None, ())  # wrong
Options(batch="2")  # wrong
fx2onnx.UserError(1, "what")  # wrong
fx2onnx.optimize("in.onnx", level="2")  # wrong
