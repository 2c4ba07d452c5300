"""Writers of tables, package data and generated pages, and the tools that test the tests."""
