"""Library functions whose Python decides by data, put in tensors for as long as a module is captured."""
