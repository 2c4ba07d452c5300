"""The version of fx2onnx, and the keys under which a model's metadata holds it and the facts about the file."""

import hashlib
import json
from collections.abc import Mapping, Sequence

VERSION = "0.1.0"

DOCS = "https://fx2onnx.readthedocs.io/en/stable/"
"""The address of the documents of the newest release; ``project.urls`` of pyproject.toml has the same."""

PRODUCER = "fx2onnx"
"""``producer_name`` of our files."""

OF_EXPORTERS = "pkg."
"""The prefixes of the metadata keys under which exporters keep notes on the whole model."""

CONDITIONS = "fx2onnx.conditions"
"""Sizes that the file is right for: ``sizes.stated``."""

STATE = "fx2onnx.state"
"""Inputs with state, and the outputs with their next values, as JSON."""

CHANGED = "fx2onnx.changed"
"""JSON that maps each tensor in an argument object that forward changes to the output with its new value."""

DERIVATION = "fx2onnx.derivation"
"""The edits that made a file from another one, as JSON: ``proof.derivation``."""

DATA_DIGESTS = "fx2onnx.data_digests"
"""JSON that maps each file of the model's weights to its SHA-256."""

OPTIONAL_INPUTS = "fx2onnx.optional_inputs"
"""Says that initializers which are also inputs are defaults, with which a part of the computation is left out."""

BAKED = "fx2onnx.baked"
"""The names of the arguments whose sample values the file has in their place, as a JSON list."""


CHECK = "check"
"""The key in the metadata of a node that fails where a condition on sizes does not hold."""


def derivation_text(digest: str, rules: Mapping[str, int], steps: Sequence[Sequence[str]]) -> str:
    """The text of a derivation: the SHA-256 of the file before, the version of each rule, each edit as rule and values with
    marks, and the SHA-256 of all that.
    """
    told = {"of": digest, "rules": dict(rules), "steps": [list(step) for step in steps]}
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return json.dumps({**told, "sha256": digest}, separators=(",", ":"))
