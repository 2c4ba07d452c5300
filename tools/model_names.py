"""Write the names of models of each kind of source into ``fx2onnx/sources/names.json``: ``python -m tools.model_names``."""

from __future__ import annotations

import importlib
import json

from fx2onnx.sources.registry import KINDS, NAMES


def collected() -> dict[str, list[str]]:
    """The names of each kind that has some, as the installed libraries give them."""
    from models_zoo import registry

    found = {kind.prefix: importlib.import_module(kind.module).names() for kind in KINDS.values()}
    return {kind: sorted(names) for kind, names in (found | {"zoo": registry.names()}).items() if names}


if __name__ == "__main__":
    lines = [f' "{kind}": {json.dumps(names)}' for kind, names in collected().items()]
    NAMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
