"""Where a node comes from, as exporters write it down: the module, and the line of source code."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of ``torch.onnx.export``: the names of all modules around a node, and its own, as a Python list."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LONGEST_SCOPES = 10_000
"""Characters of that list which are parsed: it comes from a file."""


def scope_of(name: str, metadata: Mapping[str, str]) -> str:
    """The path of the module whose forward makes the node, such as ``encoder.layer.0``; empty for the root or unknown."""
    text = metadata.get(SCOPES, "")
    if text and len(text) < _LONGEST_SCOPES:
        try:
            scopes = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            scopes = None
        if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str):
            return scopes[-2]
    parts: list[str] = []
    for part in name.split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):  # TorchScript's names: /layer1/layer1.0/conv1/Conv
            parts[-1] = part
        elif part:
            parts.append(part)
    return ".".join(parts)


def source_of(metadata: Mapping[str, str]) -> str:
    """The line that the node comes from, ``model.py:12``; of several, all; empty where the file does not say."""
    frames = _FRAME.findall(metadata.get(STACK_TRACE, ""))
    return metadata.get("source") or (":".join(frames[-1]) if frames else "")
