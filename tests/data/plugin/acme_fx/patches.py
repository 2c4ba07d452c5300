import torch

from fx2onnx.model_patches import patches


@patches("acme_fx.layers:at_most_one", reason="decides by the largest number: both results are computed")
def at_most_one(x):
    largest = x.abs().max()
    return torch.where(largest > 1, x / largest, x)
