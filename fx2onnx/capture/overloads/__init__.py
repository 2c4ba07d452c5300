"""Overloads of which capture itself knows more than torch tells."""
