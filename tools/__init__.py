"""What writes tables, package data and generated pages, and what tests the tests."""
