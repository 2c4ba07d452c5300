"""Errors, events, changes that are taken back, and what else every layer may use. Imports neither torch nor onnx."""
