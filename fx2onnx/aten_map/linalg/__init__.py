"""Families of linear algebra."""
