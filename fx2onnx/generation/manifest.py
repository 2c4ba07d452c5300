"""``fx2onnx.json``: what an exported folder says about itself. It is data from wherever the folder comes from.

``read_manifest`` checks every field. ``source_within`` lets the file name its checkpoint in the folder, or a type of model;
whatever else it says is the user's to repeat.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import parse_qsl

from fx2onnx.base.errors import UserError
from fx2onnx.base.folder_commit import MANIFEST as MANIFEST_FILE
from fx2onnx.base.folder_commit import VERSION, FileEntry, is_plain_name, path_now
from fx2onnx.base.folder_files import inside, read_object
from fx2onnx.base.staging import PREFIX


@dataclass(frozen=True)
class Manifest:
    """The fields, those of an empty file where the folder has none.

    ``source, task, seed``  what was exported, and how random weights are drawn;
    ``baked``               inputs that are constants of the graphs, as nested lists of numbers;
    ``own_prompt``          how the model's own generate changes a prompt;
    ``codebook_delays``     by how many steps each codebook is written later;
    ``version``             of the file's form;
    ``files, copied``       what each graph and file of weights is, and each config; None where that is not written;
    ``others``              options of the export and keys that are not known.
    """

    source: str = ""
    task: str = ""
    seed: int = 0
    baked: Mapping[str, Any] = field(default_factory=dict)
    own_prompt: Mapping[str, int] = field(default_factory=dict)
    codebook_delays: tuple[int, ...] = ()
    version: int | None = None
    files: Mapping[str, FileEntry] | None = None
    copied: Mapping[str, FileEntry] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError E302, which names the file and the field."""
    path = inside(folder, MANIFEST_FILE)
    if not path.exists():
        return Manifest()
    stated = read_object(path, finite=True)
    for name, (is_right, what) in FIELDS.items():
        if stated.get(name) is not None and not is_right(stated[name]):
            raise UserError("E302", f"cannot read '{path}'", why=f"{name} is {_short(stated[name])}, not {what}")
    said = {name: value for name, value in stated.items() if name in FIELDS and value is not None}
    known = {name: said.pop(name) for name in list(said) if name in Manifest.__dataclass_fields__}
    if "codebook_delays" in known:
        known["codebook_delays"] = tuple(known["codebook_delays"])
    for key in ("files", "copied"):
        if key in known:
            known[key] = {name: FileEntry.from_json(entry) for name, entry in known[key].items()}
    if known.get("version", VERSION) > VERSION:
        raise UserError(
            "E302",
            f"cannot read '{path}'",
            why=f"it is of version {known['version']}, this fx2onnx knows {VERSION}",
            next="pip install --upgrade fx2onnx",
        )
    return Manifest(**known, others=said | {name: value for name, value in stated.items() if name not in FIELDS})


def graph_files(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """By name where each graph is read from: those that the manifest names, else all that are there.

    Raises:   UserError E302 where a graph or weights are missing, or not what was written.
    """
    if manifest.files is None:
        return {path.name: path for path in sorted(folder.glob("*.onnx")) if not path.name.startswith(PREFIX)}
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry)
    names = sorted(name for name in manifest.files if name.endswith(".onnx"))
    return {name: path_now(folder, name, manifest.files[name].digest) for name in names}


def file_now(folder: Path, manifest: Manifest, name: str) -> Path:
    """Where the config ``name`` is read from, if it is there."""
    entry = (manifest.copied or {}).get(name)
    return folder / name if entry is None else path_now(folder, name, entry.digest)


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    path = inside(folder, path_now(folder, name, entry.digest).name)
    try:
        found = FileEntry.of(path) if path.is_file() and path.stat().st_size == entry.bytes else None
    except OSError as cause:
        raise UserError("E302", f"cannot read '{path}'", why=str(cause)) from cause
    if found == entry:
        return
    if not path.exists():
        raise UserError("E302", f"the folder '{folder}' lacks {name}", why=f"{MANIFEST_FILE} names it")
    raise UserError(
        "E302",
        f"'{folder / name}' is not the file that was exported",
        why=f"{MANIFEST_FILE} has another size or digest for it",
        next=["export the folder again, or copy all of its files",
              f"or take files and copied out of {MANIFEST_FILE}, if you changed the file on purpose"],
    )  # fmt: skip


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 4096 and value.isprintable()


def _is_mapping(of: Callable[[Any], object]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(_is_text, value)) and all(map(of, value.values()))


def _is_numbers(value: Any) -> bool:
    """A number, or a list of such of one shape."""
    if not isinstance(value, list):
        return isinstance(value, bool | float) or _is_int(-(2**63), 2**63 - 1)(value)
    return all(map(_is_numbers, value)) and len({_shape(item) for item in value}) <= 1


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value), *_shape(value[0] if value else 0)) if isinstance(value, list) else ()


_IS_COUNT = _is_int(0, 2**63 - 1)
_SIZE = (_is_int(1, 2**31), "a number from 1 on")
_TEXT = (_is_text, "a line of text")
_ENTRIES = (
    lambda value: _is_mapping(FileEntry.from_json)(value) and all(map(is_plain_name, value)),
    'an object of names in the folder with {"bytes": whole number, "digest": 32 hex digits}',
)
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "source": _TEXT,
    "task": _TEXT,
    "seed": (_is_int(-(2**63), 2**64 - 1), "a whole number of 64 bits"),
    "baked": (_is_mapping(_is_numbers), "an object of arrays of numbers"),
    "own_prompt": (_is_mapping(_is_int(0, 2**31)), "an object of whole numbers from 0 on"),
    "codebook_delays": (
        lambda value: isinstance(value, list) and len(value) < 4096 and all(map(_is_int(0, 4096), value)),
        "a list of numbers of steps",
    ),
    "version": (_IS_COUNT, "a whole number"),
    "files": _ENTRIES,
    "copied": _ENTRIES,
    "batch": _SIZE,
    "seq": _SIZE,
    "image_size": _SIZE,
    "weights": _TEXT,
    "dtype": _TEXT,
}
"""What is checked of the fields that are written: by name, the check and what is expected."""

_TYPE = re.compile(r"[A-Za-z0-9][\w-]{0,99}")
_LITERAL = re.compile(r"[\w\s.,+()\[\]'\"-]*")


def source_within(folder: Path, manifest: Manifest) -> str:
    """The source that the file names, where that leads nowhere but into the folder: ``hf:`` with the folder itself or one
    inside, or with a type of model. Options have to be literals.

    Raises:   UserError E302, which says what the file names, why that is not followed and what the user can do.
    """
    kind, _, rest = manifest.source.partition(":")
    name, _, query = rest.partition("?")
    if kind != "hf" or not name:
        raise _refused(folder, manifest, f"{kind}: can import code or read files, hf: alone is followed")
    for key, value in parse_qsl(query, keep_blank_values=True):
        if not key.isidentifier() or not _LITERAL.fullmatch(value):
            raise _refused(folder, manifest, f"the option {key}={value} is no literal")
    if _TYPE.fullmatch(name) and not os.path.lexists(folder / name):
        if os.path.isdir(name):
            raise _refused(folder, manifest, f"there is a folder '{name}' here, which may be meant or not")
        return manifest.source
    place = _place(folder, name)
    if place is None:
        raise _refused(folder, manifest, f"it lies outside the folder '{folder}'")
    if not os.path.isdir(place) or "?" in str(place):
        raise _refused(folder, manifest, f"there is no folder '{place}'")
    return f"hf:{place}{rest.removeprefix(name)}"


def trusted_source(folder: Path, manifest: Manifest) -> str:
    """The source as the file names it, a path as seen from the folder."""
    name, mark, query = manifest.source.removeprefix("hf:").partition("?")
    if manifest.source.startswith("hf:") and os.path.isdir(folder / name):
        return f"hf:{(folder / name).resolve()}{mark}{query}"
    return manifest.source


def _place(folder: Path, name: str) -> Path | None:
    if PurePath(name).is_absolute():
        return None
    home = folder.resolve()
    try:
        place = (home / name).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    return place if place == home or home in place.parents else None


def _refused(folder: Path, manifest: Manifest, why: str) -> UserError:
    follow = trusted_source(folder, manifest)
    own = follow if follow.startswith("hf:") and os.path.isdir(follow[3:].partition("?")[0]) else "hf:CHECKPOINT_FOLDER"
    return UserError(
        "E302",
        f"'{folder / MANIFEST_FILE}' says that the folder was made from '{manifest.source}', which is not followed",
        why=why,
        next=[f"name what to compare with yourself: --source '{own}'", "or follow what the file says: --trust-source"],
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:56]}..."
