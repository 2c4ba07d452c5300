"""Helpers on onnx_ir: emit, query, check, write. Never imports torch."""

import fx2onnx.irx.late_sympy  # noqa: F401  (before the first import of onnx_ir)
