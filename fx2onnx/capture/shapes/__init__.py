"""Symbolic sizes: their environment of guards, and what stands for one in Python."""
