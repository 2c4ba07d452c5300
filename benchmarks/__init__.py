"""Measurements. Each prints ratios taken side by side in one process."""
