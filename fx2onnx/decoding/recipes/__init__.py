"""Forms of generating models, a file each."""
