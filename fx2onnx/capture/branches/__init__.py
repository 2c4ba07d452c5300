"""Both ways of Python's data-dependent and shape-dependent decisions in one file: tried run by run and merged, or
recorded within one run."""
