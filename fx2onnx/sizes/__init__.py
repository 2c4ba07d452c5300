"""Symbolic sizes: expressions, relations, sets of sizes, conditions, and what is known of them."""

from fx2onnx.sizes import rules as rules
