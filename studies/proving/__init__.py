"""Proofs of rewrites and opset changes on symbols: algebra, graphs, z3, cases and planted wrong rules."""
