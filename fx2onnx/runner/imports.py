"""What a model holds beside its graph: opsets and functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.runner.nodes import check_text, distinct
from fx2onnx.runner.schemas import NEWEST_OPSET


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Version by domain, the standard one as "". Raises: UserError E303 for a version that cannot be."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain, version = entry.domain, entry.version
        check_text(domain)
        if not 1 <= version < 1 << 31:
            raise UserError("E303", "an opset version is out of range")
        name = "" if domain == "ai.onnx" else domain
        if opsets.setdefault(name, version) != version:
            raise UserError("E303", f"two versions of the opset {domain!r} are imported: {opsets[name]} and {version}")
    if opsets.get("", 1) > NEWEST_OPSET:
        raise UserError("E303", f"the model needs opset {opsets['']}; the installed onnx knows up to {NEWEST_OPSET}")
    return opsets


def functions_of(proto: Any) -> dict[tuple[str, str, str], Any]:
    """The model's functions by domain, name and overload. Raises: UserError E303 for one that is defined twice."""
    result: dict[tuple[str, str, str], Any] = {}
    for function in proto.functions:
        domain = "" if function.domain == "ai.onnx" else function.domain
        check_text(domain, function.name, function.overload, *function.output, *function.attribute)
        key = (domain, function.name, function.overload)
        if key in result:
            raise UserError("E303", f"the function {domain}::{function.name} is defined twice")
        inputs = distinct(function.input, "function input")
        known = {*inputs, *(name for node in function.node for name in node.output)}
        for node in function.node:
            for name in node.input:
                if name and name not in known:
                    raise UserError("E303", f"the input {name!r} of a node in {function.name!r} is made nowhere")
        for name in function.output:
            if name not in known:
                raise UserError("E303", f"nothing in function {function.name} makes its output {name!r}")
        result[key] = function
    return result
