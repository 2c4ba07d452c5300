"""Models that break ONNX's specification, by what they break; ``case.py`` says how they are written."""

from __future__ import annotations

from invalid_models.arity import ARITY
from invalid_models.attributes import ATTRIBUTES
from invalid_models.bodies import BODIES
from invalid_models.files import FILES
from invalid_models.functions import FUNCTIONS
from invalid_models.names import NAMES
from invalid_models.tensors import TENSORS
from invalid_models.types import TYPES
from invalid_models.values import VALUES

CASES = {**FILES, **NAMES, **TYPES, **TENSORS, **ATTRIBUTES, **FUNCTIONS, **ARITY, **BODIES, **VALUES}
GROUPS = (FILES, NAMES, TYPES, TENSORS, ATTRIBUTES, FUNCTIONS, ARITY, BODIES, VALUES)
