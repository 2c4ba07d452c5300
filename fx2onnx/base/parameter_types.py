"""The types that ONNX's operators take and give. Source: ``onnx.defs``."""

from __future__ import annotations

import re
from typing import Any

_MAP = re.compile(r"map\((\w+), (\w+)\)")
"""As constraints name it."""


def types_of(parameter: Any, schema: Any) -> frozenset[str]:
    """What ``parameter.types`` says, which onnx 1.20 cannot hand over."""
    allowed = next(
        (each.allowed_type_strs for each in schema.type_constraints if each.type_param_str == parameter.type_str),
        (parameter.type_str,),
    )
    return frozenset(_MAP.sub(r"map(\1,tensor(\2))", name) for name in allowed)
