"""Sources of transformers."""
