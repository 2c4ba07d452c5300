"""Which arguments of the module are constants of a file: written beside the graph as metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fx2onnx.base.typed_json import built, metadata

METADATA_KEY = "fx2onnx.baked"
"""Model metadata: the names of the arguments whose sample values the file has in their place, as a JSON list."""


def written(names: Sequence[str]) -> str | None:
    """The names as metadata; None where there are none."""
    return json.dumps(list(names)) if names else None


def read(text: str | None) -> tuple[str, ...]:
    """The names of a file. Raises UserError E303 where ``text`` does not hold such."""
    with metadata(METADATA_KEY):
        return built(tuple[str, ...], json.loads(text or "[]"), METADATA_KEY)
