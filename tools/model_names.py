"""Write the names of models of each kind of source into ``fx2onnx/sources/names.json``: ``python -m tools.model_names``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json

from fx2onnx.sources.model_names import NAMES
from fx2onnx.sources.registry import KINDS


def collected() -> dict[str, list[str]]:
    """The names of each kind that has some, as the installed libraries give them."""
    from models_zoo import registry

    kinds = [kind for kind in KINDS.values() if kind.package is None or importlib.util.find_spec(kind.package)]
    found = {kind.prefix: importlib.import_module(kind.module).names() for kind in kinds}
    return {kind: sorted(names) for kind, names in (found | {"zoo": registry.names()}).items() if names}


if __name__ == "__main__":
    found = collected()
    packages = sorted({kind.package for kind in KINDS.values() if kind.package and kind.prefix in found})
    versions = json.dumps({package: importlib.metadata.version(package) for package in packages})
    lines = [f'  "{kind}": {json.dumps(names)}' for kind, names in found.items()]
    text = ",\n".join(lines)
    NAMES.write_text(f'{{\n "versions": {versions},\n "names": {{\n{text}\n }}\n}}\n', encoding="utf-8")
