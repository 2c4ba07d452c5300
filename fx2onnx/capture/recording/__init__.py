"""The run on fake tensors, written down: nodes, tensors that share memory, branches."""
