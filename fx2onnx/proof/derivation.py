"""The derivation in an optimized file: which rules made it from which file. It is checked, and names the rules of changed nodes.

No verdict rests on it: ``certify`` derives each value by its own equations, and a node that no listed rule made is
treated alike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fx2onnx.base.errors import VerificationError
from fx2onnx.base.metadata import DERIVATION
from fx2onnx.files.digest import sha256_of_file
from fx2onnx.proof.opened import OpenedFile

_EQUATIONS = (
    *("ArrangeWeights", "CancelInvolution", "DivideByRoot", "DropNeutralOperand", "DropZeroState", "DropZeroTerm"),
    *("FixedTarget", "FoldBatchNorm", "FoldConvAffine", "FoldMatMulScale", "FoldWeightTranspose", "FoldZeroPoint"),
    *("FuseBareLayerNorm", "FuseBiasGelu", "FuseGelu", "FuseHeadBias", "FuseHeadScale", "FuseLayerNorm"),
    *("FuseLayerNormBias", "FuseMatMulAdd", "FuseMatMulScale", "FuseMatMulTranspose", "FusePackedBias", "FusePad"),
    *(
        "FuseRMSNorm",
        "FuseSkipNorm",
        "FuseTransposeGemm",
        "GridGather",
        "MergeConcats",
        "MergeMatMuls",
        "MergeReshapes",
    ),
    *("MergeSlices", "MergeTransposes", "MoveReshapeUp", "PackHeads", "PickEarly", "PlainCast", "RemoveNoop"),
    *("RemoveRequantize", "SkipExpand", "SliceSplat", "SplitGathers", "SplitProduct", "SwapReluMaxPool", "SwapWhere"),
    *("UnflattenGemm", "fold_branches", "fold_constants", "fold_weight_formulas", "merge_equal_nodes"),
    *("merge_equal_weights", "remove_dead_nodes"),
)
_CONVERSIONS = ("fix_sizes", "make_dynamic", "convert_opset", "quantize", "lower_precision", "fit_to_target")
"""Steps that change the operators, the sizes or the numbers of the file on purpose."""
RULES: Mapping[str, int] = dict.fromkeys((*_EQUATIONS, *_CONVERSIONS), 1)
"""The version of each rule that the equations here were compared with (docs/measured/proofs.md)."""


@dataclass
class Derivation:
    """The rules that a file says it was made by."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    """The rules that made each value anew, in order."""


def counts_of(text: str) -> dict[str, int]:
    """The number of times that each rule was applied, by the text of a derivation; empty where it is damaged."""
    try:
        return dict(sorted(Counter(str(name) for name, _ in json.loads(text)["steps"]).items()))
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def derivation_of(before: OpenedFile, after: OpenedFile) -> Derivation:
    """The derivation in ``after``, an empty one where it has none. Raises VerificationError E304."""
    text = next((entry.value for entry in after.proto.metadata_props if entry.key == DERIVATION), "")
    digest, found = sha256_of_file(before.path), Derivation()
    if not text or sha256_of_file(after.path) == digest:
        return found
    again = f"optimize the file again: fx2onnx optimize '{before.path}'; or certify without the list: --no-derivation"
    try:
        told = json.loads(text)
        source, versions = str(told["of"]), {str(name): int(version) for name, version in told["rules"].items()}
        steps = [(str(name), str(place)) for name, place in told["steps"]]
        is_whole = {name for name, _ in steps} == set(versions)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise VerificationError("E304", f"the derivation in '{after.path}' is damaged", next=again)
    if source != digest:
        why = f"it is of a file with SHA-256 {source[:16]}, and '{before.path}' has {digest[:16]}"
        raise VerificationError("E304", f"the derivation in '{after.path}' is of another file", why=why, next=again)
    unknown = [f"{name} {version}" for name, version in versions.items() if RULES.get(name) != version]
    if unknown:
        why = "known are " + (", ".join(f"{n} {RULES[n]}" for n in versions if n in RULES) or "none of its rules")
        what = f"the derivation in '{after.path}' has rules that this version does not know: {', '.join(unknown)}"
        raise VerificationError("E304", what, why=why, next=again)
    for name, place in steps:
        found.counts[name] += 1
        if place:
            found.places.setdefault(place, []).append(name)
    return found
