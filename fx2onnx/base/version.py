"""The version, in the one place that everything reads it from."""

VERSION = "0.1.0"
