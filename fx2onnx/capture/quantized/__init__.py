"""Eager quantisation: tensors of quantised dtypes, operators on them, and fake quantisation; imported where a module has such."""
