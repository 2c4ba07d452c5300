"""Entries of operators outside ``aten``, one file a namespace; imported by the table when one is looked up."""
