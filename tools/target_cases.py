"""Models of one node that runtimes are tried with: the cases of ``target_nodes``, without each optional input and output, in the other
dtypes of the operator, and with dynamic sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fx2onnx.irx.schema import GRAPH_BEARING
from fx2onnx.targets.match import DYNAMIC
from tools.target_nodes import DTYPES, Case, bound_values, cases_of_versions, checked, chosen, keep_inputs

CASTS = frozenset({"Cast", "CastLike"})
"""Operators whose results for numbers that a dtype does not hold are up to the runtime."""
MOST_RETYPED = 3
"""Cases of an operator version that are tried in other dtypes: those that ask for least."""
SMALL = 256
"""Elements of a case at most, where there are smaller ones to be tried in other dtypes."""


def cases() -> Iterator[Case]:
    """All of them."""
    for found in cases_of_versions().values():
        known: set[frozenset[str]] = set()
        for case in found:
            yield case
            known.add(without_rank(case.features))
        fewer = [variant for case in found for variant in _with_fewer(case)]
        for case in fewer:
            if without_rank(case.features) not in known:
                known.add(without_rank(case.features))
                found.append(case)
                yield case
        plainest = sorted(found, key=lambda case: (_elements(case) > SMALL, len(without_rank(case.features))))
        plain = _of_other_features(plainest)[:MOST_RETYPED]
        for case in plain:
            yield from _retyped(case)
        for case in plain:
            yield from _dynamic(case)


def without_rank(features: frozenset[str]) -> frozenset[str]:
    """All but ``rank N``."""
    return frozenset(feature for feature in features if not feature.startswith("rank"))


def _elements(case: Case) -> int:
    return sum(array.size for array in case.inputs.values())


def _of_other_features(every: list[Case]) -> list[Case]:
    """The first of each set of features, then the others."""
    first: dict[frozenset[str], Case] = {}
    for case in every:
        first.setdefault(without_rank(case.features), case)
    return [*first.values(), *(case for case in every if all(case is not each for each in first.values()))]


def _with_fewer(case: Case) -> Iterator[Case]:
    """The same without each optional input or output, and without all of them; a loop without its end is none."""
    if case.op_type in GRAPH_BEARING:
        return
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    node = onnx.load_from_string(case.model).graph.node[0]
    places = [
        (side, place)
        for side, names, formals in (("input", node.input, schema.inputs), ("output", node.output, schema.outputs))
        for place, name in enumerate(names)
        if name and place < len(formals) and formals[place].option == optional
    ]
    choices = [places, *([place] for place in places)] if len(places) > 1 else [places] if places else []
    for left_out in choices:
        variant = _without(case, left_out)
        if variant is not None:
            yield variant


def _without(case: Case, places: list[tuple[str, int]]) -> Case | None:
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    for side, place in places:
        getattr(node, side)[place] = ""
    for names in (node.input, node.output):
        while names and not names[-1]:
            del names[-1]
    kept = [value for value in model.graph.initializer if value.name in node.input]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    given = [value for value in model.graph.output if value.name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(given)
    keep_inputs(model, node.input)
    return checked(case, model, chosen(set(node.input), case.inputs)) if given else None


def _retyped(case: Case) -> Iterator[Case]:
    """The same with each type parameter in the other dtypes that the operator admits."""
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    for constraint in schema.type_constraints:
        parameter = constraint.type_param_str
        for word in DTYPES:
            if f"tensor({word})" in constraint.allowed_type_strs and case.types.get(parameter, word) != word:
                changed = _in_dtype(case, schema, parameter, word)
                if changed is not None:
                    yield changed


def _in_dtype(case: Case, schema: Any, parameter: str, word: str) -> Case | None:
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    bound = {name for each, name in bound_values(schema, node) if each == parameter}
    code = getattr(onnx.TensorProto, word.upper())
    for value in (*model.graph.input, *model.graph.output):
        if value.name in bound:
            value.type.tensor_type.elem_type = code
    for tensor in model.graph.initializer:
        if tensor.name in bound:
            tensor.CopyFrom(numpy_helper.from_array(_cast(numpy_helper.to_array(tensor), word), tensor.name))
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype", "output_dtype") and node.output[0] in bound:
            attribute.i = code
    given = (
        {name: _of_all_dtypes(array) for name, array in case.inputs.items()} if case.op_type in CASTS else case.inputs
    )
    feeds = {name: _cast(array, word) if name in bound else array for name, array in given.items()}
    changed = checked(case, model, feeds)
    return _between_casts(changed, bound) if changed is not None and word == "bfloat16" else changed


def _of_all_dtypes(array: np.ndarray) -> np.ndarray:
    """The same with numbers that every dtype holds: what a cast of others gives is up to the runtime."""
    return (
        np.asarray(np.clip(np.nan_to_num(np.abs(array)), 0, 100), array.dtype) if array.dtype.kind in "fiu" else array
    )


def _cast(array: np.ndarray, word: str) -> np.ndarray:
    """In that dtype: magnitudes where it has no sign."""
    with np.errstate(all="ignore"):
        return (np.abs(array) if word.startswith("u") and array.dtype != np.bool_ else array).astype(DTYPES[word])


def _between_casts(case: Case, bound: set[str]) -> Case | None:
    """The same with float32 outside, since few runtimes are handed bfloat16."""
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    before, behind = [], []
    for values, casts, names in ((model.graph.input, before, node.input), (model.graph.output, behind, node.output)):
        for value in values:
            if value.name not in bound:
                continue
            inner = f"{value.name}/bfloat16"
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            ends = ([value.name], [inner]) if casts is before else ([inner], [value.name])
            to = onnx.TensorProto.BFLOAT16 if casts is before else onnx.TensorProto.FLOAT
            casts.append(helper.make_node("Cast", *ends, to=to))
            for place, name in enumerate(names):
                if name == value.name:
                    names[place] = inner
    del model.graph.node[:]
    model.graph.node.extend([*before, node, *behind])
    feeds = {name: array.astype(np.float32) if name in bound else array for name, array in case.inputs.items()}
    outputs = case.outputs and [
        array.astype(np.float32) if array.dtype == DTYPES["bfloat16"] else array for array in case.outputs
    ]
    return replace(case, model=model.SerializeToString(), inputs=feeds, outputs=outputs)


def _dynamic(case: Case) -> Iterator[Case]:
    """The same with sizes of its inputs and outputs that are known when it runs."""
    model = onnx.load_from_string(case.model)
    if not model.graph.input:
        return
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    yield replace(case, model=model.SerializeToString(), features=case.features | {DYNAMIC})


def with_constants(case: Case) -> Case:
    """The same with all inputs but the first as constants, or with the only one: weights, scales and shapes stand so in files."""
    model = onnx.load_from_string(case.model)
    first = list(case.inputs)[:1] if len(case.inputs) > 1 else []
    for name, array in case.inputs.items():
        if name not in first:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    keep_inputs(model, first)
    return replace(case, model=model.SerializeToString(), inputs=chosen(set(first), case.inputs))
