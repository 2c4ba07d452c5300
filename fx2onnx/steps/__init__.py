"""From one opened model to a written one: a list of steps, in one order for exports and for files of any origin."""
