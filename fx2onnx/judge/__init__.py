"""Is it the same? Engines, example inputs, the tolerance model and verdicts, without torch; the reference is an argument."""
