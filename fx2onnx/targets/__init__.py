"""Runtimes that files are made for: what each runs (``tables/``), what a file lacks for it, and the changes that
help."""
