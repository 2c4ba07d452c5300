"""The source that an exported folder names: followed into the folder itself, or to a type of model, and no further."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from urllib.parse import parse_qsl

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.manifest.form import Manifest

_TYPE = re.compile(r"[A-Za-z0-9][\w-]{0,99}")
_KINDS = ("hf", "gguf")
_LITERAL = re.compile(r"[\w\s.,+()\[\]'\"-]*")


def source_within(folder: Path, manifest: Manifest) -> str:
    """The source that the file names, where that leads nowhere but into the folder: ``hf:`` with the folder itself or one
    inside, or with a type of model; ``gguf:`` with a file inside. Options have to be literals.

    Raises:   UserError E302, which says what the file names, why that is not followed and what the user can do.
    """
    kind, _, rest = manifest.source.partition(":")
    name, _, query = rest.partition("?")
    if kind not in _KINDS or not name:
        raise _refused(folder, manifest, f"{kind}: can import code or read files, hf: and gguf: alone are followed")
    for key, value in parse_qsl(query, keep_blank_values=True):
        if not key.isidentifier() or not _LITERAL.fullmatch(value):
            raise _refused(folder, manifest, f"the option {key}={value} is no literal")
    if kind == "hf" and _TYPE.fullmatch(name) and not os.path.lexists(folder / name):
        if os.path.isdir(name):
            raise _refused(folder, manifest, f"there is a folder '{name}' here, which may be meant or not")
        return manifest.source
    place = _place(folder, name)
    if place is None:
        raise _refused(folder, manifest, f"it lies outside the folder '{folder}'")
    if not (os.path.isdir if kind == "hf" else os.path.isfile)(place) or "?" in str(place):
        raise _refused(folder, manifest, f"there is no {'folder' if kind == 'hf' else 'file'} '{place}'")
    return f"{kind}:{place}{rest.removeprefix(name)}"


def trusted_source(folder: Path, manifest: Manifest) -> str:
    """The source as the file names it, a path as seen from the folder."""
    kind, _, rest = manifest.source.partition(":")
    name, mark, query = rest.partition("?")
    if kind in _KINDS and (os.path.isdir if kind == "hf" else os.path.isfile)(folder / name):
        return f"{kind}:{(folder / name).resolve()}{mark}{query}"
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
    kind, _, rest = follow.partition(":")
    is_there = kind in _KINDS and os.path.exists(rest.partition("?")[0])
    own = follow if is_there else "hf:CHECKPOINT_FOLDER"
    return UserError(
        "E302",
        f"'{folder / MANIFEST}' says that the folder was made from '{manifest.source}', which is not followed",
        why=why,
        next=[f"name what to compare with yourself: --source '{own}'", "or follow what the file says: --trust-source"],
    )
