"""A module whose import fails, as one of a user's may."""

raise RuntimeError("no device")
