"""``make onnxruntime-schemas``: the schemas of onnxruntime's own operators, into fx2onnx/semantics/onnxruntime_schemas.json.

Those that the CPU provider of the installed release has kernels for are written down whole, the others by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

TABLE = Path(__file__).parents[1] / "fx2onnx" / "semantics" / "onnxruntime_schemas.json"
DOMAINS = ("", "com.microsoft", "com.microsoft.nchwc")
LEFT_OUT = {"MemcpyFromHost", "MemcpyToHost"}
"""Operators that onnxruntime inserts for itself."""


def _word(option: Any) -> str:
    return str(option).rsplit(".", 1)[-1]


def _parameters(formal: Any, variables: set[str], sets: dict[tuple[str, ...], int]) -> list[list[Any]]:
    """Name, type variable or "", number of the set of types, and 1 where it is optional, for each."""
    made = []
    for each in formal:
        types = tuple(sorted(each.types))
        variable = each.typeStr if each.typeStr in variables and each.isHomogeneous else ""
        made.append([each.name, variable, sets.setdefault(types, len(sets)), int(_word(each.option) == "Optional")])
    return made


def table() -> dict[str, Any]:
    """The operators and schemas of the installed onnxruntime."""
    known = {(each.domain, each.name) for each in onnx.defs.get_all_schemas_with_history()}
    on_cpu = {(k.domain, k.op_name) for k in state.get_all_opkernel_def() if k.provider == "CPUExecutionProvider"}
    sets: dict[tuple[str, ...], int] = {}
    operators: dict[str, dict[str, Any]] = {domain: {} for domain in DOMAINS}
    elsewhere = []
    for schema in sorted(state.get_all_operator_schema(), key=lambda each: (each.domain, each.name)):
        key = (schema.domain, schema.name)
        if schema.domain not in operators or schema.name in LEFT_OUT or (not schema.domain and key in known):
            continue
        if key not in on_cpu:
            if schema.domain:
                elsewhere.append(schema.name)
            continue
        variables = {each.type_param_str for each in schema.type_constraints}
        operators[schema.domain][schema.name] = {
            "inputs": _parameters(schema.inputs, variables, sets),
            "outputs": _parameters(schema.outputs, variables, sets),
            "counts": [schema.min_input, schema.max_input, schema.min_output, schema.max_output],
            "attributes": {
                name: [int(getattr(onnx.AttributeProto, _word(attribute.type))), int(attribute.required)]
                for name, attribute in sorted(schema.attributes.items())
            },
        }
    return {
        "onnxruntime": onnxruntime.__version__,
        "types": [list(types) for types in sets],
        "operators": operators,
        "elsewhere": elsewhere,
    }


def text_of(made: dict[str, Any]) -> str:
    """One line for each operator."""
    lines = [f'{{"onnxruntime": {json.dumps(made["onnxruntime"])}, "types": [']
    lines.append(",\n".join(json.dumps(types) for types in made["types"]))
    lines.append('], "operators": {')
    domains = []
    for domain, operators in made["operators"].items():
        entries = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in operators.items())
        domains.append(f"{json.dumps(domain)}: {{\n{entries}}}")
    lines.append(",\n".join(domains))
    lines.append(f'}}, "elsewhere": {json.dumps(made["elsewhere"])}}}')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text_of(table()), encoding="utf-8")
