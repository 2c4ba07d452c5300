"""Rewrites and passes over onnx_ir models. Never imports torch or the runner. ``fx2onnx.optimize(...)`` is of files."""

from fx2onnx.base.public_names import make_callable

make_callable(__name__)
