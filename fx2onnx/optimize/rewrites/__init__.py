"""One rewrite a file; ``pipelines.py`` says which run."""
