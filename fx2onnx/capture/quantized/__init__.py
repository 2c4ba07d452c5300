"""Eager quantization: tensors of quantized dtypes, operators on them, and fake quantization; imported where a module has such."""
