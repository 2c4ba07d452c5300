"""Attest an ONNX file: the in-toto statement about it (digests of its files, how it was made, what was compared), and checks of one.

The text is the one JSON form of its content, and holds the SHA-256 of itself with that digest left empty: a changed byte shows.
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.metadata import DATA_DIGESTS, DERIVATION, DOCS, PRODUCER, VERSION
from fx2onnx.files.digest import sha256_of_file
from fx2onnx.files.staging import write_text
from fx2onnx.irx.model_files import add_metadata, check_data_digests, data_locations, nodes_within
from fx2onnx.judge.verdict import METADATA_KEY as VERDICT
from fx2onnx.judge.verdict import Verdict
from fx2onnx.proof.derivation import counts_of
from fx2onnx.semantics.check import open_file
from fx2onnx.semantics.reading.weights import confined_path

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


_PACKAGES = ("fx2onnx", "torch", "onnx", "onnx_ir", "numpy", "onnxruntime")


def bind_data(path: str | os.PathLike[str]) -> None:
    """Write the digests of the files of its weights into an ONNX file, whose graph stays as it is.

    Raises: UserError E301, E302, E303.
    """
    loaded = open_file(path)
    found = {
        name: sha256_of_file(confined_path(name, loaded.folders, f"'{path}'")) for name in data_locations(loaded.proto)
    }
    if found:
        add_metadata(path, {DATA_DIGESTS: json.dumps(found)})


def attest(
    path: str | os.PathLike[str],
    *,
    out: Path | None = None,
    command: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
    verdict: Verdict | None = None,
    rewrites: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Write the statement about a file beside it, or to ``out``, and return it.

    command: what made the file, with its options. source: what it was made from. verdict: what was compared; default: what the
    file's metadata says. rewrites: how often each was applied; default: what the notes on its nodes say.

    Raises: UserError E301, E302, E303.
    """
    loaded = open_file(path)
    proto, place = loaded.proto, os.fspath(path)
    subjects = [subject(path, os.path.basename(place))]
    for name in data_locations(proto):
        subjects.append(subject(confined_path(name, loaded.folders, f"'{place}'"), name))
    said = {entry.key: entry.value for entry in proto.metadata_props}
    found = _recorded(said.get(VERDICT, "")) if verdict is None else as_json(verdict.summary())
    tried = None if found is None else found.pop("tried", None)
    predicate = {
        "command": command,
        "versions": {"python": sys.version.split()[0], **dict(_versions())},
        "model": {
            "producer": " ".join(filter(None, (proto.producer_name, proto.producer_version))),
            "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
            "nodes": sum(1 for _ in nodes_within(proto)),
        },
        "source": source,
        "tried": tried,
        "verdict": found,
        "derivation": dict(rewrites) if rewrites is not None else _derivation(proto),
    }
    statement = statement_of(subjects, predicate)
    write_statement(statement_path(place) if out is None else out, statement)
    return statement


def _recorded(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return as_json(found) if isinstance(found, dict) else None


def _versions() -> Iterator[tuple[str, str]]:
    from fx2onnx.base.metadata import VERSION

    for name in _PACKAGES:
        try:
            yield name, VERSION if name == "fx2onnx" else metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _derivation(proto: onnx.ModelProto) -> dict[str, int]:
    """The edits that ``optimize`` listed, or the rewrites that the nodes name as their makers, and how many nodes each made."""
    text = next((entry.value for entry in proto.metadata_props if entry.key == DERIVATION), "")
    if text:
        return counts_of(text)
    made = collections.Counter(
        name
        for node in nodes_within(proto)
        for entry in node.metadata_props
        if entry.key == "rewrite"
        for name in entry.value.split(", ")
    )
    return dict(sorted(made.items()))


def check(
    path: str | os.PathLike[str],
    found: dict[str, Any],
    again: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Verdict]] | None = None,
) -> dict[str, Any]:
    """Compare a file and the files of its weights with a statement that was read, and return the statement.

    again: gives what the file was made from and a new verdict, which have to be what the statement says.

    Raises: VerificationError E304 that names all that differs; UserError E302, E303 for a file that cannot be read.
    """
    wrong = [*_changed(path, found["subject"])]
    if not wrong:
        loaded = open_file(path)
        check_data_digests(loaded.proto, loaded.folders, may_lack=True)
    if not wrong and again is not None:
        source, verdict = again(found["predicate"])
        wrong += _otherwise(found["predicate"], as_json(source), verdict)
    if wrong:
        raise VerificationError("E304", f"'{path}' is not what its statement says", why="; ".join(wrong), next=AGAIN)
    return found


def _changed(path: str | os.PathLike[str], subjects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    folder = os.path.dirname(os.path.abspath(path))
    for index, each in enumerate(subjects):
        name = str(each["name"])
        place = (
            path if index == 0 else confined_path(name, (folder, os.path.dirname(os.path.realpath(path))), f"'{path}'")
        )
        if subject(place, name)["digest"] != each["digest"]:
            yield f"the content of {os.path.basename(place)} has another digest"


def _otherwise(said: Mapping[str, Any], source: Mapping[str, Any], verdict: Verdict) -> Iterator[str]:
    """The claims of a statement that the source and its verdict contradict."""
    before = said.get("source") or {}
    if before.get("state") and before["state"] != source.get("state"):
        yield "the weights of the source have another digest"
    files = {each["name"]: each["digest"] for each in source.get("files") or ()}
    for each in before.get("files") or ():
        if files.get(each["name"]) != each["digest"]:
            yield f"the source's file {each['name']} " + (
                "has another digest" if each["name"] in files else "is missing"
            )
    was = said.get("verdict")
    if was is not None and bool(was.get("ok")) != verdict.ok:
        yield f"the statement's verdict is {'good' if was.get('ok') else 'bad'}, and now: {verdict.describe()}"
    elif was is None and not verdict.ok:
        yield f"the file is not as its source: {verdict.describe()}"


def asked(options: Any, default: Any) -> dict[str, Any]:
    """The fields of a dataclass of options that are not as in ``default``, as JSON types."""
    if options is None or isinstance(options, Mapping):
        return dict(options or {})
    names = getattr(type(options), "__dataclass_fields__", {})
    return {name: as_json(value) for name in names if (value := getattr(options, name)) != getattr(default, name)}


def source_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The files of a checkpoint with their digests. Raises UserError E302."""
    return [subject(path, path.name) for path in sorted(paths)]


def require_path(f: Any) -> None:
    """Raises UserError E001 where an export that is attested goes into no file."""
    if not isinstance(f, str | os.PathLike):
        raise UserError(
            "E001",
            "attest=True needs a path: the statement is a file beside the model",
            next="give f='model.onnx', or save the model and call fx2onnx.attest('model.onnx')",
        )
