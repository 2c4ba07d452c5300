"""The model made to run on what it is for: casts where a kernel is missing, an error where nothing helps."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.irx.origin import source_of
from fx2onnx.targets import faults
from fx2onnx.targets.find import DEFAULT, find
from fx2onnx.targets.fit import fit
from fx2onnx.targets.narrowed import METADATA_KEY

MOST_NAMED = 8


@dataclass
class FittedToTarget:
    """What the report says of it."""

    casts: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def fit_to_target(model: ir.Model, options: ExportOptions) -> FittedToTarget:
    """``fit`` for the target asked for, or for the default one if it takes the opset.

    Raises: UserError E204 where a target that was asked for cannot run the model, with all such nodes.
    """
    target = find(options.target or DEFAULT)
    if options.target is None and target.opset is not None and options.opset > target.opset:
        return FittedToTarget()
    with record("fit to target"):
        fitted = fit(model, target)
        faults.avoid(model, target)
    if fitted.left and options.target is not None:
        raise _refusal(fitted.left, target.name)
    result = FittedToTarget(fitted.casts)
    if fitted.left:
        result.warnings.append(f"{target.name} has no kernel for {_named(fitted.left)}")
    if fitted.narrowed:
        model.metadata_props[METADATA_KEY] = json.dumps(dict(fitted.narrowed))
        count = sum(fitted.narrowed.values())
        kinds = ", ".join(sorted({text.split()[1] for text in fitted.narrowed}))
        result.warnings.append(
            f"{target.name} has no float64 kernels for {kinds}: {count} nodes compute in float32"
            ' (target="onnx" leaves them as they are)'
        )
    return result


def _named(nodes: list[ir.Node]) -> str:
    """The nodes with their dtypes and lines; of many, the first."""
    texts = dict.fromkeys(_text(node) for node in nodes)
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts][:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _text(node: ir.Node) -> str:
    dtypes = ", ".join(
        value.dtype.name.lower() for value in node.inputs if value is not None and value.dtype is not None
    )
    where = source_of(node.metadata_props)
    return f"{node.op_type}({dtypes})" + (f" at {where}" if where else "")


def _refusal(nodes: list[ir.Node], target: str) -> UserError:
    return UserError(
        "E204",
        f"{target} cannot run {len(nodes)} of the nodes",
        why=f"it has no kernel for {_named(nodes)}",
        next="choose another target, an opset_version in which they have other forms, or other dtypes",
    )
