"""Ways to a graph: the module's own run on fake tensors, symbolic tracing, torch.export."""
