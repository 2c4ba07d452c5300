"""Tests of captures count how often a module runs."""

from __future__ import annotations

import torch._dynamo  # noqa: F401  # a run that needs it begins again once it is imported
