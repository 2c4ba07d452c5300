"""The contents of an exported folder, as the side that writes it and the side that runs it both read it."""
