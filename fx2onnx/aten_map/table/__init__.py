"""The table itself, and what its entries share: dtypes, axes."""
