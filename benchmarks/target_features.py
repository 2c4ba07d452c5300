"""Which attributes and optional inputs a runtime lacks, from the cases that it runs and those that it does not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from benchmarks.target_cases import Case
from fx2onnx.targets.features import features_of

RANK = "rank"
"""Of the first input. It excuses the attributes of a case that fails, and accuses nothing: a few ranks are tried at most."""


def lacking(every: Sequence[Case], said: Sequence[str]) -> dict[str, list[str]]:
    """``{"::Resize": ["antialias=1"]}``: what the runtime has in no case that it runs, and is all that tells one that it does not
    run from those, of the same operator, version and dtype.

    A case that fails by two such features at once accuses neither.
    """
    features = [_features(case) for case in every]
    runs: dict[str, set[str]] = defaultdict(set)
    taken: set[tuple[str, int, str]] = set()
    for case, has, problem in zip(every, features, said, strict=True):
        if not problem:
            runs[case.op_type] |= has
            taken.add((case.op_type, case.version, case.dtype))
    lacked: dict[str, set[str]] = defaultdict(set)
    for case, has, problem in zip(every, features, said, strict=True):
        unseen = has - runs[case.op_type]
        is_told_apart = len(unseen) == 1 and (case.op_type, case.version, case.dtype) in taken
        if problem and is_told_apart and _is_valid(case):
            lacked[f"::{case.op_type}"] |= {name for name in unseen if not name.startswith(RANK)}
    return {op_type: sorted(names) for op_type, names in sorted(lacked.items()) if names}


def _is_valid(case: Case) -> bool:
    """Whether that version of the operator knows the words of its attributes, which the checker does not ask: the cases of
    older versions are made from newer ones.
    """
    schema = onnx.defs.get_schema(case.op_type, case.version, "")
    (node,) = onnx.load_from_string(case.model).graph.node
    return all(
        re.search(rf"\b{re.escape(attribute.s.decode())}\b", schema.attributes[attribute.name].description)
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.STRING and not schema.attributes[attribute.name].required
    )


def _features(case: Case) -> frozenset[str]:
    proto = onnx.load_from_string(case.model)
    model = ir.from_proto(proto)
    rank = len(proto.graph.input[0].type.tensor_type.shape.dim) if proto.graph.input else 0
    (node,) = model.graph
    return features_of(node, model.graph.opset_imports[""]) | {f"{RANK} {rank}"}
