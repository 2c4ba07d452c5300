"""Seeded malformed files of strangers: ``python -m tests.fuzz --cases N --seed S --target NAME``.

A target is a file with ``case(rng, folder)``: it makes one case in the empty ``folder`` and reads it. Success and a
``UserError`` are right; whatever else is raised, run, opened outside or takes too long is a fault. ``TARGETS`` names them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import checkpoint, config, dims, header, index, manifest, page

TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "manifest": manifest.case,
    "config": config.case,
    "header": header.case,
    "index": index.case,
    "dims": dims.case,
    "page": page.case,
    "checkpoint": checkpoint.case,
}
SLOW = {"checkpoint": 30}
"""Targets that build models, and the part of the cases that they run."""
