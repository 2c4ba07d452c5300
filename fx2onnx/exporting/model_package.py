"""``manifest.json``: an exported folder as a model package, which ``onnxruntime.ModelPackageContext`` (1.32) opens.

Source: what onnxruntime 1.32's own ``ModelPackage`` writes and accepts, schema version 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fx2onnx.base.metadata import VERSION

FILE = "manifest.json"


def write_package(files: Iterable[str], name: str, stage: Path) -> None:
    """A component for each graph, by the name of its file, with one variant for processors."""
    components = {
        file.removesuffix(".onnx"): {
            "variants": {
                "cpu": {
                    "variant_directory": ".",
                    "ep": "CPUExecutionProvider",
                    "executor_info": {"ort": {"model_file": file}},
                }
            }
        }
        for file in files
    }
    package = {
        "schema_version": "1.0",
        "layout": "portable",
        "package_name": name,
        "description": f"written by fx2onnx {VERSION}",
        "components": components,
    }
    (stage / FILE).write_text(json.dumps(package, indent=2) + "\n", encoding="utf-8")
