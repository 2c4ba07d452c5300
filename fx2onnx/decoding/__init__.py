"""Generating models as graphs whose caches are plain tensors."""
