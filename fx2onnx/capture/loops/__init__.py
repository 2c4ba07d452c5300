"""Loops over dynamic sizes as loops of the file: their turns are run until it is known what one hands on to the next."""
