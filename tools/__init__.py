"""Tools of the project: they write pages, tables and package data, or change the code to test the tests."""
