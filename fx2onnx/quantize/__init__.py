"""Weights in few bits: codes and scales, made as they are written (docs/quantization.md). Without torch."""
