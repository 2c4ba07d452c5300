"""The SBOM names what the wheel holds beyond Python packages."""

from __future__ import annotations

import json
from typing import Any

from fx2onnx.base.metadata import VERSION
from tools.sbom import LICENCES, complete


def test_the_libraries_of_pages_are_components() -> None:
    """Each that is built into them, in the version that was built, under the package that brings them."""
    built = json.loads((LICENCES.parent / "source" / "package.json").read_text())["dependencies"]
    root: dict[str, Any] = {"bom-ref": "root", "name": "fx2onnx"}
    dependencies = [{"ref": "root", "dependsOn": ["numpy==2"]}, {"ref": "numpy==2"}]
    bom = complete({"metadata": {"component": root}, "components": [], "dependencies": dependencies})
    found = {each["name"]: each["version"] for each in bom["components"]}
    assert {name: version for name, version in built.items() if name != "esbuild"}.items() <= found.items()
    assert all(each["licenses"] for each in bom["components"])
    assert set(bom["dependencies"][0]["dependsOn"]) == {"numpy==2", *(each["purl"] for each in bom["components"])}
    assert bom["metadata"]["component"]["version"] == VERSION
