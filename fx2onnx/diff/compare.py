"""``diff``: two files, compared by structure and by their weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.metadata import DERIVATION
from fx2onnx.base.stack_frames import public, public_methods
from fx2onnx.diff.matching import Side
from fx2onnx.diff.nodes import NodeChange, NodeDifferences, compare_parts
from fx2onnx.diff.opened import OpenedModel, Tensor, open_model, type_of
from fx2onnx.irx.given import as_file, name_of
from fx2onnx.irx.values import dtype_name
from fx2onnx.judge.arrays import BLOCK_ELEMENTS, Array, bits_of, largest_difference
from fx2onnx.sizes import stated as size_conditions

Weights: TypeAlias = dict[ir.Value, Tensor]

FEW_ELEMENTS = 8
"""The largest weight whose elements are shown one by one: sizes, axes, scales."""
MOST_AXES = 5
"""The largest number of axes of a weight for which every order of them is tried."""


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """A weight of one file alone."""

    name: str
    dtype: str
    shape: list[int]


@dataclass(frozen=True, slots=True)
class ChangedWeight:
    """A weight of both files with other numbers. ``perm`` is set where the second is the first transposed, exactly;
    ``largest`` and ``scale`` (the largest magnitude in the first) are None where shapes differ or there are no numbers.
    """

    name: str
    other_name: str
    dtype: str
    other_dtype: str
    shape: list[int]
    other_shape: list[int]
    read_by: str
    """A node of the first file."""
    perm: list[int] | None = None
    largest: float | None = None
    scale: float | None = None
    before: Any = None
    after: Any = None
    """The numbers, where they are few."""


@dataclass(slots=True)
class WeightDifferences:
    """``equal`` and ``renamed`` are no differences."""

    equal: int = 0
    renamed: list[tuple[str, str]] = field(default_factory=list)
    changed: list[ChangedWeight] = field(default_factory=list)
    added: list[WeightFacts] = field(default_factory=list)
    removed: list[WeightFacts] = field(default_factory=list)


def compare_weights(one: Side, other: Side, used: Mapping[tuple[ir.Value, ir.Value], str]) -> WeightDifferences:
    """``used``: pairs that paired nodes read at the same input, and the first such node. What computes decides; weights that
    no paired node reads are paired by name, content and shape.
    """
    found = WeightDifferences()
    left, right = dict(one.weights), dict(other.weights)
    for pair, node in used.items():
        _compare(one, other, *pair, found, node)
        left.pop(pair[0], None)
        right.pop(pair[1], None)
    for key in (_name_and_content, _content, _name_and_shape, _elements):
        for value, same in _pairs(one, other, left, right, key):
            if key is not _elements or _permutation(one, other, value, same) is not None:
                _compare(one, other, value, same, found)
                del left[value], right[same]
    found.removed = [_facts(one, value) for value in left]
    found.added = [_facts(other, value) for value in right]
    return found


def _name_and_content(side: Side, value: ir.Value) -> Hashable:
    return value.name, _content(side, value)


def _content(side: Side, value: ir.Value) -> Hashable:
    return side.weight(side.weights[value], with_content=True)


def _name_and_shape(side: Side, value: ir.Value) -> Hashable:
    return value.name, tuple(side.weights[value].shape.numpy())


def _elements(side: Side, value: ir.Value) -> Hashable:
    """The same for the same elements in any order: how many there are, and the sum of their bytes."""
    array = side.opened.array(side.weights[value])
    if array.dtype.kind == "O":
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
    sums = [int(flat[:, index].sum(dtype=np.uint64)) for index in range(array.dtype.itemsize)]
    return array.dtype.name, array.size, *sums


def _pairs(
    one: Side, other: Side, left: Weights, right: Weights, key: Callable[[Side, ir.Value], Hashable]
) -> list[tuple[ir.Value, ir.Value]]:
    """The pairs of weights of one key in order, each at most once."""
    waiting: dict[Hashable, list[ir.Value]] = {}
    for value in right:
        waiting.setdefault(key(other, value), []).append(value)
    for values in waiting.values():
        values.reverse()
    keys = {value: key(one, value) for value in left}
    return [(value, waiting[k].pop()) for value, k in keys.items() if k is not None and waiting.get(k)]


def _compare(
    one: Side, other: Side, value: ir.Value, same: ir.Value, found: WeightDifferences, read_by: str = ""
) -> None:
    before, after = one.weights[value], other.weights[same]
    name, other_name = value.name or "", same.name or ""
    if one.weight(before, with_content=True) == other.weight(after, with_content=True):
        if name == other_name:
            found.equal += 1
        else:
            found.renamed.append((name, other_name))
        return
    first, second = _facts(one, value), _facts(other, same)
    perm = _permutation(one, other, value, same)
    arrays = one.opened.array(before), other.opened.array(after)
    largest, scale = None, None
    if first.shape == second.shape and perm is None:
        largest, scale = largest_difference(*arrays)
    few = (array.tolist() if array.size <= FEW_ELEMENTS else None for array in arrays)
    types = (first.dtype, second.dtype, first.shape, second.shape)
    found.changed.append(ChangedWeight(name, other_name, *types, read_by, perm, largest, scale, *few))


def _facts(side: Side, value: ir.Value) -> WeightFacts:
    tensor = side.weights[value]
    return WeightFacts(value.name or "", dtype_name(tensor.dtype), [int(dim) for dim in tensor.shape.numpy()])


def _permutation(one: Side, other: Side, value: ir.Value, same: ir.Value) -> list[int] | None:
    """The order of axes that makes the second of the first, element for element."""
    first, second = _facts(one, value), _facts(other, same)
    rank = len(first.shape)
    if first.dtype != second.dtype or sorted(first.shape) != sorted(second.shape) or not 2 <= rank <= MOST_AXES:
        return None
    before, after = one.opened.array(one.weights[value]), other.opened.array(other.weights[same])
    for perm in itertools.permutations(range(rank)):
        if [first.shape[axis] for axis in perm] == second.shape and _equal(before.transpose(perm), after):
            return list(perm)
    return None


def _equal(before: Array, after: Array) -> bool:
    """Element for element; NaN is NaN. The first row of each is looked at first, since that mostly decides it."""
    rows = max(1, BLOCK_ELEMENTS // max(1, math.prod(before.shape[1:])))
    starts = [0, *range(1, len(before), rows)]
    for start, end in itertools.pairwise([*starts, len(before)]):
        if not np.array_equal(bits_of(before[start:end]), bits_of(after[start:end])):
            return False
    return True


VERDICT_KEY = "fx2onnx.verdict"
"""Metadata on a verification of the file: of the same file there may be several."""


@public_methods
@dataclass(slots=True, repr=False)
class Difference(Shown):
    """The differences of the second file from the first.

    ``model`` holds opsets, the IR version and metadata; ``interface`` inputs and outputs; ``functions`` those of one file
    alone. ``info`` says by whom the files are, which is no difference.
    """

    files: tuple[str, str]
    model: list[NodeChange] = field(default_factory=list)
    interface: list[NodeChange] = field(default_factory=list)
    functions: list[NodeChange] = field(default_factory=list)
    nodes: NodeDifferences = field(default_factory=NodeDifferences)
    weights: WeightDifferences = field(default_factory=WeightDifferences)
    info: list[NodeChange] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if both compute the same from the same inputs under the same names. Names and order of nodes, names of
        weights, and who wrote the files make no difference.
        """
        nodes, weights = self.nodes, self.weights
        return not any(
            (self.model, self.interface, self.functions, nodes.added, nodes.removed, nodes.changed, nodes.outputs)
        ) and not any((weights.changed, weights.added, weights.removed))

    def _shown(self) -> dict[str, Any]:
        nodes, weights = self.nodes, self.weights
        numbers = {f"nodes {name}": len(getattr(nodes, name)) or "" for name in ("added", "removed", "changed")}
        numbers |= {f"weights {name}": len(getattr(weights, name)) or "" for name in ("added", "removed", "changed")}
        return {"files": " ".join(self.files), "equal": "yes" if self.equal else "no", **numbers}

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        nodes = dataclasses.asdict(dataclasses.replace(self.nodes, weights={}))
        del nodes["weights"]
        return {
            "equal": self.equal,
            "files": list(self.files),
            **{
                name: [dataclasses.asdict(change) for change in getattr(self, name)]
                for name in ("model", "interface", "functions", "info")
            },
            "nodes": nodes,
            "weights": dataclasses.asdict(self.weights),
        }


@public
def diff(one: Any, other: Any) -> Difference:
    """Compare two models: paths, bytes, ``onnx.ModelProto``, ``onnx_ir.Model`` or ``ExportResult``. Weights in other files are
    mapped, not read into memory.

    Raises:   UserError E001 for an object that is no model, E302 for a file that cannot be read, E303 for one that is no valid model.
    """
    with as_file(one) as path, as_file(other) as other_path:
        return _diff(open_model(path), open_model(other_path), (name_of(one), name_of(other)))


def _diff(first: OpenedModel, second: OpenedModel, names: tuple[str, str]) -> Difference:
    numbers: dict[Any, int] = {}
    sides = Side(first, numbers), Side(second, numbers)
    found = Difference(names)
    found.model = _models(first, second)
    found.info = _info(first, second)
    main, counterpart = first.part(first.model.graph), second.part(second.model.graph)
    inputs, others = ([value for value in part.inputs if value not in part.weights] for part in (main, counterpart))
    for value, same in _paired(inputs, others):
        sides[0].tokens[value] = sides[1].tokens[same] = sides[0].number("input of the model", len(sides[0].tokens))
    found.interface = _interface("input", inputs, others) + _interface("output", main.outputs, counterpart.outputs)
    compare_parts(*sides, main, counterpart, found.nodes)
    _compare_functions(sides, found)
    found.weights = compare_weights(*sides, found.nodes.weights)
    return found


def _paired(values: Sequence[ir.Value], others: Sequence[ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
    """The pairs of equal names; what is left over, in order."""
    by_name = {value.name: value for value in others}
    pairs = [(value, by_name[value.name]) for value in values if value.name in by_name]
    taken = {value for pair in pairs for value in pair}
    rest = ([value for value in each if value not in taken] for each in (values, others))
    return pairs + list(zip(*rest, strict=False))


def _interface(what: str, values: Sequence[ir.Value], others: Sequence[ir.Value]) -> list[NodeChange]:
    """Names, dtypes and shapes, and the order."""
    pairs = _paired(values, others)
    changes = []
    for value, same in pairs:
        (dtype, shape), (other_dtype, other_shape) = type_of(value), type_of(same)
        name = value.name or ""
        known = (("name", name, same.name), ("dtype", dtype, other_dtype), ("shape", shape, other_shape))
        changes += [NodeChange(f"{what} {part}", name, one, two) for part, one, two in known if one != two]
    taken = {value for pair in pairs for value in pair}
    changes += [NodeChange(what, value.name or "", _typed(value), None) for value in values if value not in taken]
    changes += [NodeChange(what, value.name or "", None, _typed(value)) for value in others if value not in taken]
    names, other_names = ([value.name or "" for value in each] for each in (values, others))
    if names != other_names and sorted(names) == sorted(other_names):
        changes.append(NodeChange(f"{what} order", "", names, other_names))
    return changes


def _typed(value: ir.Value) -> str:
    dtype, shape = type_of(value)
    return f"{dtype or 'unknown'} {shape if shape is not None else '[...]'}"


def _models(one: OpenedModel, other: OpenedModel) -> list[NodeChange]:
    changes = _changed("opset", one.opsets, other.opsets)
    changes += _changed("IR version", {"": one.model.ir_version}, {"": other.model.ir_version})
    return changes + _changed("metadata", _metadata(one), _metadata(other))


def _info(one: OpenedModel, other: OpenedModel) -> list[NodeChange]:
    written = [
        {
            "producer": f"{opened.model.producer_name or ''} {opened.model.producer_version or ''}".strip(),
            "name": opened.model.graph.name or "",
        }
        for opened in (one, other)
    ]
    return _changed("model", *written)


def _changed(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[NodeChange]:
    names = dict.fromkeys([*before, *after])
    return [
        NodeChange(what, name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _metadata(opened: OpenedModel) -> dict[str, Any]:
    """Conditions on sizes without the lines that ask for them, which move; all else as it stands."""
    found: dict[str, Any] = {
        key: value for key, value in opened.model.metadata_props.items() if key not in (VERDICT_KEY, DERIVATION)
    }
    try:
        rows = size_conditions.read(found[size_conditions.METADATA_KEY])
        found[size_conditions.METADATA_KEY] = sorted({row.text for row in rows})
    except (UserError, KeyError):  # none, or malformed, which is compared as text
        pass
    return found


def _compare_functions(sides: tuple[Side, Side], found: Difference) -> None:
    one, other = sides
    functions, others = one.opened.model.functions, other.opened.model.functions
    for key, function in functions.items():
        name = "::".join(filter(None, key))
        if key not in others:
            found.functions.append(NodeChange("function", name, f"{len(function)} nodes", None))
            continue
        first, second = (
            one.opened.part(function, f"function {name}"),
            other.opened.part(others[key], f"function {name}"),
        )
        for value, same in zip(first.inputs, second.inputs, strict=False):
            one.tokens[value] = other.tokens[same] = one.number("input of a function", len(one.tokens))
        compare_parts(one, other, first, second, found.nodes)
    for key, function in others.items():
        if key not in functions:
            found.functions.append(NodeChange("function", "::".join(filter(None, key)), None, f"{len(function)} nodes"))
