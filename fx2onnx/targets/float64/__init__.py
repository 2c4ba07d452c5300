"""Float64 operators as subgraphs in float64 of operators that targets have kernels for: what ``fit`` puts in the place of a
node without a float64 kernel.
"""
