"""Complete the SBOM of ``make sbom``: the version of fx2onnx, and the libraries inside the wheel's pages: ``python -m tools.sbom FILE``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from fx2onnx.base.metadata import VERSION

LICENCES = Path(__file__).parents[1] / "fx2onnx" / "report" / "vendor" / "LICENSES.md"


def libraries(licences: str) -> dict[str, dict[str, Any]]:
    """The libraries by purl, made of headings such as ``## echarts 6.1.0 (Apache-2.0)``."""
    found = {}
    for name, version, licence in re.findall(r"^## (\S+) (\S+) \(([\w.-]+)\)", licences, re.MULTILINE):
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
        found[purl] = {
            "type": "library", "bom-ref": purl, "purl": purl, "name": name, "version": version,
            "licenses": [{"license": {"id": licence}}],
        }  # fmt: skip
    return found


def complete(bom: dict[str, Any]) -> dict[str, Any]:
    """The SBOM with them."""
    inside = libraries(LICENCES.read_text(encoding="utf-8"))
    root = bom["metadata"]["component"]
    root["version"] = VERSION
    bom["components"] += inside.values()
    bom["dependencies"] += [{"ref": purl} for purl in inside]
    for each in bom["dependencies"]:
        if each["ref"] == root["bom-ref"]:
            each["dependsOn"] = sorted([*each.get("dependsOn", ()), *inside])
    return bom


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(
        json.dumps(complete(json.loads(file.read_text(encoding="utf-8"))), indent=2) + "\n", encoding="utf-8"
    )
