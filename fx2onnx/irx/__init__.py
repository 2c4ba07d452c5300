"""Helpers on onnx_ir: emit, query, check, write. Never imports torch."""
