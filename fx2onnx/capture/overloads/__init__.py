"""Overloads of which capture knows more than torch does."""
