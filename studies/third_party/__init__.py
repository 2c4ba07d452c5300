"""Models of other people's packages, each in a process of its own: which export with the sizes that a user wants dynamic."""
