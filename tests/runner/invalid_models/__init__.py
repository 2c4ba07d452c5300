"""Models that break ONNX's specification, by what they break; ``case.py`` says how they are written."""

from __future__ import annotations

from invalid_models.files import FILES, NAMES
from invalid_models.functions import BODIES, FUNCTIONS
from invalid_models.nodes import ARITY, ATTRIBUTES, VALUES
from invalid_models.tensors import TENSORS
from invalid_models.types import TYPES

GROUPS = (FILES, NAMES, TYPES, TENSORS, ATTRIBUTES, FUNCTIONS, ARITY, BODIES, VALUES)
CASES = {name: case for group in GROUPS for name, case in group.items()}
