"""The signature of a ``forward``, also of a scripted module or function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def signature_of(forward: Callable[..., Any]) -> inspect.Signature | None:
    """The signature; that of TorchScript is its schema, without a method's ``self``. None where there is none."""
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        schema: Any = getattr(forward, "schema", None)
    try:
        return inspect.Signature(
            [
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY if each.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=each.default_value if each.has_default_value() else inspect.Parameter.empty,
                    annotation=str(each.type),
                )
                for place, each in enumerate(schema.arguments)
                if place or each.name != "self"
            ]
        )
    except (AttributeError, ValueError, RuntimeError):  # a schema of several overloads, names that are no words
        return None
