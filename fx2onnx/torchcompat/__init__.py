"""torch's private names, a file for each concern. What versions of torch do otherwise is found out by looking for it."""
