"""An in-toto statement about an ONNX file: digests of its files, how it was made, what was compared. Its text proves itself whole.

The text is the one JSON form of its content, and holds the SHA-256 of itself with that digest left empty: a changed byte shows.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.metadata import DOCS, PRODUCER, VERSION
from fx2onnx.files.digest import sha256_of_file
from fx2onnx.files.staging import write_text

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = f"{DOCS}attestation.html#v1"
"""The address of the page that says what the fields of the predicate mean."""
ENDING = ".intoto.json"
AGAIN = "attest the file again: fx2onnx attest FILE"


def statement_path(path: str | os.PathLike[str]) -> Path:
    """The path of the statement about a file: its name and ``.intoto.json``."""
    return Path(f"{os.fspath(path)}{ENDING}")


def subject(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """A file by name and digest, as in-toto has it. Raises UserError E302."""
    try:
        return {"name": name, "digest": {"sha256": sha256_of_file(path)}}
    except (OSError, ValueError) as cause:
        raise UserError("E302", f"cannot read '{path}'", why=str(cause)) from cause


def statement_of(subjects: Iterable[Mapping[str, Any]], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The statement with the digest of itself."""
    producer = {"name": PRODUCER, "version": VERSION}
    content = {"producer": producer, **as_json(predicate)}
    found = {"_type": TYPE, "subject": list(subjects), "predicateType": PREDICATE_TYPE, "predicate": content}
    content["statement"] = {"sha256": _own_digest(found)}
    return found


def as_json(value: Any) -> Any:
    """``value`` in JSON types: floats that JSON lacks become text, and what it has no form for its name."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else getattr(value, "__qualname__", type(value).__name__)


def write_statement(path: Path, statement: Mapping[str, Any]) -> None:
    """Write the text. Raises UserError E301."""
    write_text(path, _text(statement))


def read_statement(path: Path) -> dict[str, Any]:
    """The statement in a file. Raises UserError E302 where there is none, VerificationError E304 where its text was changed."""
    try:
        content = path.read_bytes()
    except OSError as cause:
        raise UserError("E302", f"there is no statement in '{path}'", why=str(cause), next=AGAIN) from cause
    try:
        found = json.loads(content)
        if found["_type"] != TYPE or found["predicateType"] != PREDICATE_TYPE:
            raise UserError(
                "E302",
                f"'{path}' is a statement of another kind",
                why=f"{found['_type']!r:.80}, {found['predicateType']!r:.80}",
                next=AGAIN,
            )
        is_whole = found["predicate"]["statement"]["sha256"] == _own_digest(found)
        is_whole = is_whole and bool(found["subject"][0]["digest"]["sha256"]) and content == _text(found).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise VerificationError("E304", f"the statement '{path}' was changed or cut off", next=AGAIN)
    return dict(found)


def _own_digest(statement: Mapping[str, Any]) -> str:
    predicate = {**statement["predicate"], "statement": {"sha256": ""}}
    return hashlib.sha256(_text({**statement, "predicate": predicate}).encode()).hexdigest()


def _text(statement: Mapping[str, Any]) -> str:
    return json.dumps(statement, indent=2, allow_nan=False) + "\n"
