"""torch's private names, a file for each concern. Checked with torch 2.13."""
