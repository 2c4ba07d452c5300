"""``docs/manifest.schema.json``, made of the dataclasses: ``python -m tools.manifest_schema`` writes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from fx2onnx.manifest.form import Manifest

FILE = Path(__file__).parents[1] / "docs" / "manifest.schema.json"
_TYPES = {int: "integer", str: "string", float: "number", bool: "boolean", NoneType: "null"}


def schema() -> dict[str, Any]:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "fx2onnx.json of an exported folder"}
    definitions: dict[str, Any] = {}
    return {**head, **_schema_of(Manifest, definitions), "$defs": definitions}


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {
            "type": "object",
            "properties": {name: _referred(hint, definitions) for name, hint in hints.items()},
            "required": [field.name for field in dataclasses.fields(kind) if field.default is field.default_factory],
            "additionalProperties": False,
        }
    if origin is Annotated:
        return {**_referred(args[0], definitions), **args[1].schema, "description": args[1].what}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _referred(args[0], definitions)}
    if origin is Mapping:
        names, values = (_referred(one, definitions) for one in args)
        return {"type": "object", "propertyNames": names, "additionalProperties": values}
    if args:
        return {"anyOf": [_referred(one, definitions) for one in args]}
    return {} if kind is Any else {"type": _TYPES[kind]}


def _referred(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if not dataclasses.is_dataclass(kind):
        return _schema_of(kind, definitions)
    name = kind.__name__  # type: ignore[union-attr]
    if name not in definitions:
        definitions[name] = _schema_of(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}


def text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
