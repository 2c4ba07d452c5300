"""Measurements of speed and memory. Each prints ratios taken side by side in one process."""
