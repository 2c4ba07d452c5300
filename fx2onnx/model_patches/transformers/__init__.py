"""Patches of transformers, a file each concern."""
