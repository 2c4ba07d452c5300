"""Rewrites and passes over onnx_ir models. Never imports torch or the runner."""
