"""What an exported folder holds, as the side that writes it and the side that runs it both read it."""
