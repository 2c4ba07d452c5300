"""The arguments of a call by the names of its schema."""

from __future__ import annotations

from typing import Any

import torch

OpOverload = torch._ops.OpOverload


def given(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Every argument of the schema by name, defaults filled in."""
    arguments = func._schema.arguments
    filled = {one.name: one.default_value if one.has_default_value() else None for one in arguments}
    return filled | dict(zip([one.name for one in arguments], args, strict=False)) | kwargs
