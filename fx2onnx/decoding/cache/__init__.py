"""What a model keeps between two steps of generation."""
