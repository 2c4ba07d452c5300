"""Graphs that train: forward, gradients and the optimizer's step as one program of standard operators."""
