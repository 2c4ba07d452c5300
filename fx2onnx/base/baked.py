"""Which arguments of the module are constants of a file: written beside the graph as metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fx2onnx.base.errors import UserError
from fx2onnx.base.typed_json import built

METADATA_KEY = "fx2onnx.baked"
"""Model metadata: the names of the arguments whose sample values the file has in their place, as a JSON list."""


def written(names: Sequence[str]) -> str | None:
    """The names as metadata; None where there are none."""
    return json.dumps(list(names)) if names else None


def read(text: str | None) -> tuple[str, ...]:
    """The names of a file. Raises UserError E303 where ``text`` does not hold such."""
    try:
        return built(tuple[str, ...], json.loads(text or "[]"), METADATA_KEY)
    except (ValueError, RecursionError) as cause:
        raise UserError(
            "E303",
            f"the model's metadata {METADATA_KEY} is malformed",
            why=str(cause)[:200],
            next="export the model again",
        ) from cause
