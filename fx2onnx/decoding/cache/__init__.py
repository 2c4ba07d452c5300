"""The state that a model keeps between two steps of generation."""
