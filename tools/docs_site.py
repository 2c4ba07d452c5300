"""Build the documents into a folder for this version, beside those of other versions: ``python -m tools.docs_site out/docs``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from fx2onnx.base.metadata import VERSION

DOCS = Path(__file__).parents[1] / "docs"
START = """<!doctype html><meta charset="utf-8"><title>fx2onnx</title>
<meta http-equiv="refresh" content="0; url={version}/index.html"><a href="{version}/index.html">fx2onnx {version}</a>
"""


def main(site: Path) -> int:
    """Write ``site/VERSION``, the list of the versions there, and a start page that leads to this one."""
    build = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(DOCS), str(site / VERSION)]
    code = subprocess.run(build, check=False).returncode
    if code == 0:
        words = (DOCS.parent / "llms.txt").read_text(encoding="utf-8").replace("(CHANGELOG.md)", "(docs/changelog.md)")
        (site / VERSION / "llms.txt").write_text(
            re.sub(r"\(docs/([\w/]+)\.md\)", r"(\1.html)", words), encoding="utf-8"
        )
        versions = sorted((path.name for path in site.iterdir() if (path / "index.html").exists()), reverse=True)
        (site / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
        (site / "index.html").write_text(START.format(version=VERSION), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
