"""A folder of files that are new together: its manifest says which they are, and its rename makes them so.

New files first get names of their own in the folder (weights have one by their content, others a pending one), which nothing
that stands there refers to. Then the manifest takes its place, with size and digest of each file: from here on the folder
holds the new set, since a file whose pending name is there is read under that. Renaming to the final names comes last; a
commit that was killed on the way is finished by the next one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.typed_json import Misfit, Only, built, within
from fx2onnx.files.digest import digest_of, digest_of_file
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.files.staging import PREFIX, locked, replace

MANIFEST = "fx2onnx.json"
VERSION = 4
_OBSOLETE = "obsolete"
_DIGEST = "[0-9a-f]{32}"
_IS_DIGEST = Only("32 hex digits", lambda value: bool(re.fullmatch(_DIGEST, value)), {"pattern": f"^{_DIGEST}$"})
CHECKED_SUFFIXES = (".onnx", ".data", ".onnx_adapter")
"""Graphs, weights and adapters must be those that were written; what else is there (configs) people may edit, with a warning."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The manifest's entry for a file."""

    bytes: Annotated[int, within(0, 2**63 - 1)]
    digest: Annotated[str, _IS_DIGEST]

    @staticmethod
    def of(path: Path) -> FileEntry:
        """Raises OSError."""
        return FileEntry(path.stat().st_size, digest_of_file(path))

    @staticmethod
    def from_json(value: Any) -> FileEntry | None:
        """None where ``value`` is no entry. A digest becomes part of a path, so it has to be one."""
        try:
            return built(FileEntry, value)
        except Misfit:
            return None


def pending_path(folder: Path, name: str, digest: str) -> Path:
    """The path of the file ``name`` with that digest between the manifest's rename and its own."""
    return folder / f"{PREFIX}{digest[:16]}-{digest_of(name.encode())[:8]}{Path(name).suffix}"


def path_now(folder: Path, name: str, digest: str) -> Path:
    """The path from which the file is read: its pending path if a commit was interrupted, else its own."""
    pending = pending_path(folder, name, digest)
    return pending if pending.is_file() else folder / name


def commit_folder(stage: Path, target: Path, facts: Mapping[str, Any], keep: Collection[str] = ()) -> None:
    """Let the files of ``stage`` take the place of those that an earlier manifest in ``target`` names.

    Files may lie in folders of ``stage``, one level deep. ``facts`` is what else the manifest says. Files of ``target`` that no
    manifest names stay as they are, and those in ``keep``, whatever a manifest says.

    Raises:   OSError, UserError E301; then the earlier files stand there untouched.
    """
    entries = {path.relative_to(stage).as_posix(): FileEntry.of(path) for path in sorted(_files_of(stage))}
    with locked(target):
        earlier = read_entries(target)
        _check_places(target, earlier, entries)
        finish(target, earlier)
        named = {**_read(target, (_OBSOLETE,)), **earlier}
        obsolete = {name: entry for name, entry in named.items() if name not in entries and name not in keep}
        _switch(stage, target, entries, _text(entries, facts, obsolete))
        try:
            finish(target, entries)
        except BaseException:
            finish(target, entries)  # an interrupt passes on when the names are right
            raise
        unchanged = [target / name for name, entry in obsolete.items() if _is_unchanged(target / name, entry)]
        for path in (*unchanged, *_orphans(target, entries)):
            with contextlib.suppress(OSError):  # in use, or another user's: only room is lost
                path.unlink()
        if obsolete:
            left = {name: entry for name, entry in obsolete.items() if (target / name).exists()}
            (stage / MANIFEST).write_text(_text(entries, facts, left), encoding="utf-8")
            replace(stage / MANIFEST, target / MANIFEST)


def _files_of(stage: Path) -> Iterator[Path]:
    """The files, also those one folder deeper. Raises OSError, which ``rglob`` would take for an empty folder."""
    for path in stage.iterdir():
        if path.is_dir():
            yield from (each for each in path.iterdir() if each.is_file())
        elif path.is_file():
            yield path


def _check_places(target: Path, earlier: Mapping[str, FileEntry], entries: Mapping[str, FileEntry]) -> None:
    """Nothing is replaced but files of an earlier export (older ones did not name their files)."""
    is_ours = (target / MANIFEST).is_file()
    for name in (*entries, MANIFEST):
        path = inside(target, name)
        if path.exists() and not path.is_file():
            raise UserError("E301", f"cannot write '{path}'", why="it is no regular file", next="remove or rename it")
        foreign = not is_ours and name not in earlier and not name.endswith(CHECKED_SUFFIXES)
        if foreign and path.exists() and not _is_unchanged(path, entries[name]):
            raise UserError(
                "E301",
                f"cannot write '{path}'",
                why="another file of that name is there, which no export wrote",
                next="export into an empty folder",
            )


def finish(folder: Path, entries: Mapping[str, FileEntry]) -> None:
    """Give the files that are pending their own names. Raises OSError."""
    for name, entry in entries.items():
        pending = pending_path(folder, name, entry.digest)
        if pending.is_file():
            inside(folder, name).parent.mkdir(exist_ok=True)
            replace(pending, folder / name)


def _switch(stage: Path, target: Path, entries: Mapping[str, FileEntry], text: str) -> None:
    manifest = stage / MANIFEST
    manifest.write_text(text, encoding="utf-8")
    fresh: list[Path] = []
    try:
        for name, entry in entries.items():
            # The name of weights is their digest: a file of that name is the same, and no older graph refers to it.
            place = target / name if name.endswith(".data") else pending_path(target, name, entry.digest)
            if not place.exists():
                fresh.append(place)
            replace(stage / name, place)
        replace(manifest, target / MANIFEST)
    except BaseException:
        if manifest.exists():  # so the one in ``target`` is the earlier one
            for place in fresh:
                with contextlib.suppress(OSError):
                    place.unlink()
        raise


def _text(entries: Mapping[str, FileEntry], facts: Mapping[str, Any], obsolete: Mapping[str, FileEntry]) -> str:
    """The manifest. ``obsolete`` files are to be removed, by the next commit where this one is killed before."""
    files = {name: asdict(entry) for name, entry in entries.items() if name.endswith(CHECKED_SUFFIXES)}
    copied = {name: asdict(entry) for name, entry in entries.items() if name not in files}
    rest = {_OBSOLETE: {name: asdict(entry) for name, entry in obsolete.items()}} if obsolete else {}
    return json.dumps({"version": VERSION, **facts, "files": files, "copied": copied, **rest}, indent=2) + "\n"


def is_file_of_folder(path: Path, folder: Path) -> bool:
    """Return whether ``path`` is the manifest of ``folder`` or a file that it names."""
    names = {MANIFEST, *read_entries(folder)}
    return path.resolve() in {folder.resolve() / name for name in names}


def read_entries(folder: Path) -> dict[str, FileEntry]:
    """The files that the manifest names; none where there is no manifest, or one that does not say so. Raises OSError."""
    return _read(folder, ("copied", "files"))


def _read(folder: Path, keys: Sequence[str]) -> dict[str, FileEntry]:
    path = folder / MANIFEST
    try:
        manifest = read_object(path) if path.exists() else {}
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return {}  # a damaged one says nothing
    parts = [manifest[key] for key in keys if isinstance(manifest.get(key), dict)]
    entries = {name: FileEntry.from_json(value) for part in parts for name, value in part.items()}
    return {name: entry for name, entry in entries.items() if entry is not None and is_member_name(name)}


def is_member_name(name: str) -> bool:
    """Return whether a manifest may name a copied file so: one in its own folder, or in a folder there."""
    parts = name.split("/")
    return len(parts) <= 2 and all(map(is_plain_name, parts))


def is_plain_name(name: str) -> bool:
    """Return whether a manifest may name a file so: one in its own folder."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0", ":"}


def _orphans(folder: Path, entries: Mapping[str, FileEntry]) -> Iterator[Path]:
    """The files that exports left which were killed before their switch."""
    yield from (path for path in folder.glob(f"{PREFIX}*") if path.is_file())
    stems = {re.escape(name.rsplit(".", 2)[0]) for name in entries if name.endswith(".data")}
    if stems:
        weights = re.compile(rf"({'|'.join(stems)})\.[0-9a-f]{{16}}\.data")
        yield from (path for path in folder.glob("*.data") if weights.fullmatch(path.name) and path.name not in entries)


def _is_unchanged(path: Path, entry: FileEntry) -> bool:
    try:
        return FileEntry.of(path) == entry
    except OSError:
        return False
