"""Imports the hook at the start of each Python that the tests start, by ``PYTHONPATH``."""

import torchvision_hook  # noqa: F401
