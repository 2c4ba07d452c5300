"""Weights and compute in half precision: which nodes stay in float32 is measured. Imports no torch."""
