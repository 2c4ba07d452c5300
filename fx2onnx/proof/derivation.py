"""The derivation in an optimized file: which rules made it from which file. It is checked, and names the rules of changed nodes.

No verdict rests on it: ``certify`` derives each value by its own equations, and a node that no listed rule made is
treated alike.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from fx2onnx.base.errors import VerificationError
from fx2onnx.base.metadata import DERIVATION, derivation_text
from fx2onnx.files.digest import sha256_of_file
from fx2onnx.proof.nodes import OpenedFile
from fx2onnx.proof.replay import ListedEdit, versions


@dataclass
class Derivation:
    """The rules that a file says it was made by."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    """The rules that made each value anew, in order."""
    steps: list[ListedEdit] | None = None
    """Each edit in order; None where the file has no list."""


def counts_of(text: str) -> dict[str, int]:
    """The number of times that each rule was applied, by the text of a derivation; empty where it is damaged."""
    try:
        return dict(sorted(Counter(str(step[0]) for step in json.loads(text)["steps"]).items()))
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def again(path: str) -> str:
    """The advice for a derivation that is wrong."""
    return f"optimize the file again: fx2onnx optimize '{path}'; or certify without the list: --no-derivation"


def _entry(rule: str, *values: str) -> ListedEdit:
    """An entry by its rule and its values: ``+`` made anew, ``-`` taken away, ``=`` both. Raises ValueError."""
    if any(value[:1] not in ("+", "-", "=") for value in values):
        raise ValueError(f"{rule}: a value without a mark")
    made, gone = ([value[1:] for value in values if value[0] in marks] for marks in ("+=", "-="))
    return ListedEdit(rule, made, gone)


def derivation_of(before: OpenedFile, after: OpenedFile) -> Derivation:
    """The derivation in ``after``, an empty one where it has none. Raises VerificationError E304."""
    text = next((entry.value for entry in after.proto.metadata_props if entry.key == DERIVATION), "")
    digest, found = sha256_of_file(before.path), Derivation()
    if not text or sha256_of_file(after.path) == digest:
        return found
    try:
        told = json.loads(text)
        source, known = str(told["of"]), {str(name): int(version) for name, version in told["rules"].items()}
        steps = [_entry(*map(str, each)) for each in told["steps"]]
        is_whole = {each.rule for each in steps} == set(known) and text == derivation_text(source, known, told["steps"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise VerificationError("E304", f"the derivation in '{after.path}' is damaged", next=again(before.path))
    if source != digest:
        why = f"it is of a file with SHA-256 {source[:16]}, and '{before.path}' has {digest[:16]}"
        raise VerificationError(
            "E304", f"the derivation in '{after.path}' is of another file", why=why, next=again(before.path)
        )
    unknown = [f"{name} {version}" for name, version in known.items() if versions().get(name) != version]
    if unknown:
        why = "known are " + (
            ", ".join(f"{n} {versions()[n]}" for n in known if n in versions()) or "none of its rules"
        )
        what = f"the derivation in '{after.path}' has rules that this version does not know: {', '.join(unknown)}"
        raise VerificationError("E304", what, why=why, next=again(before.path))
    found.steps = steps
    for each in steps:
        found.counts[each.rule] += 1
        for place in each.made:
            found.places.setdefault(place, []).append(each.rule)
    return found
