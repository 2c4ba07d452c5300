"""Functions of libraries whose Python decides by data, said in tensors for as long as a module is captured."""
