"""Seeded malformed files of strangers: ``python -m tests.fuzz --cases N --seed S --target NAME``.

A target is a file with ``case(rng, folder)``: it makes one case in the empty ``folder`` and reads it. Success and a
``UserError`` are right; whatever else is raised, run, opened outside or takes too long is a fault. ``TARGETS`` names them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import checkpoint, config, dims, header, index, manifest, models, page

TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "manifest": manifest.case, "config": config.case, "header": header.case, "index": index.case, "dims": dims.case,
    "page": page.case, "run": models.run, "lint": models.lint, "show": models.show, "diff": models.diff,
    "optimize": models.optimize, "quantize": models.quantize, "testcase": models.testcase,
    "run --engine": models.run_elsewhere, "verify": models.verify, "debug": models.debug,
    "checkpoint": checkpoint.case,
}  # fmt: skip
HEAVY = ("optimize", "quantize", "testcase", "run --engine", "verify", "debug")
"""Targets that import torch or onnxruntime, or run models: the default suite leaves them out."""
SLOW = {"checkpoint": 30}
"""Targets that build models, and the part of the cases that they run."""
