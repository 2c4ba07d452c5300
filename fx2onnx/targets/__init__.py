"""Runtimes that files are made for: what each runs (``tables/``), what a file lacks for it, and what mends that."""
