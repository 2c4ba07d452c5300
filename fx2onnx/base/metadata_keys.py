"""Keys of a model's metadata, for those who ask whether something is there before they import what reads it."""

CONDITIONS = "fx2onnx.conditions"
PRODUCER = "fx2onnx"
"""``producer_name`` of our files."""
"""Sizes that the file is right for: ``size_conditions``."""

STATE = "fx2onnx.state"
"""Inputs with state, and the outputs with their next values, as JSON."""

CHANGED = "fx2onnx.changed"
"""JSON that maps each tensor in an argument object that forward changes to the output with its new value."""
