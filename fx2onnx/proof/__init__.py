"""Proofs about a file: statements that travel with it, certificates of its rewrites, and how far its answers move."""
