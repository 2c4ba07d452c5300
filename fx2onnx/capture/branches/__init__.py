"""Both ways of Python's decisions by data and by sizes in one file: tried run by run and merged, or recorded within one run."""
