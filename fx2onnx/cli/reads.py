"""What one export reads: the files that its process opens, and the user's modules with the bytes that Python compiled."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn

from fx2onnx.base.source import PACKAGE_FOLDER
from fx2onnx.files.digest import digest_of

_READERS = (
    ("safetensors", "safe_open"),
    ("safetensors.torch", "safe_open"),
    ("safetensors.torch", "load_file"),
    ("torch", "from_file"),
    ("torch.jit", "load"),
    ("torch.export", "load"),
)
"""Functions that open the file of their first argument without Python's ``open``."""


@dataclass
class Reads:
    """The absolute paths that one job opened."""

    opened: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    started_ns: int = field(default_factory=time.time_ns)


_ACTIVE: list[Reads] = []
_LOADING: list[str] = []
"""Names of the user's modules that are being imported, the innermost last."""
OPENED_BY: dict[str, set[str]] = {}
"""By module: the files that its top-level code opened, which later jobs of this process do not open again."""
_HOOKED: list[bool] = []


@contextmanager
def reads_noted() -> Iterator[Reads]:
    """Note what is opened and imported in the block. Modules of the user are compiled from their source, not from ``.pyc``
    files, which Python takes for current by size and time alone."""
    if not _HOOKED:
        _HOOKED.append(True)
        sys.addaudithook(_on_event)
    reads = Reads()
    finder = _Finder()
    before = next((i for i, each in enumerate(sys.meta_path) if each is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(before, finder)
    _ACTIVE.append(reads)
    try:
        with _readers_noted():
            yield reads
    finally:
        _ACTIVE.remove(reads)
        sys.meta_path.remove(finder)


def is_library(path: str) -> bool:
    """Whether a file is one of Python, of an installed package or of fx2onnx, which versions tell."""
    return path.startswith(_library_folders()) or "/site-packages/" in path or "/dist-packages/" in path


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(kind) for kind in kinds} | {PACKAGE_FOLDER, os.path.dirname(os.__file__)}
    return tuple(each + os.sep for folder in folders for each in {folder, os.path.realpath(folder)})


def compiled_digest(module: ModuleType) -> str | None:
    """The digest of the source that the loaded ``module`` was compiled from; None where nobody noted it."""
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader.digest if isinstance(loader, _Loader) else None


class _Loader(SourceFileLoader):
    """Compiles from the source, and keeps the source's digest."""

    digest: str | None = None

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError("a .pyc file is neither read nor written")

    def get_data(self, path: Any) -> bytes:
        data = super().get_data(path)
        self.digest = digest_of(data)
        return data

    def exec_module(self, module: ModuleType) -> None:
        OPENED_BY[module.__name__] = set()
        _LOADING.append(module.__name__)
        try:
            super().exec_module(module)
        finally:
            _LOADING.pop()


class _Finder:
    """Finds what ``PathFinder`` finds; a module of the user's gets a ``_Loader``."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and not is_library(spec.loader.path):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _ACTIVE:
        path, _, flags = args
        if isinstance(path, str | bytes):
            _note(path, is_read=flags & (os.O_WRONLY | os.O_RDWR) == os.O_RDONLY)


def _note(path: str | bytes | os.PathLike[str], *, is_read: bool = True) -> None:
    with suppress(OSError, ValueError):  # a working directory that is gone, a name that is no text
        absolute = os.path.abspath(os.fsdecode(path))
        for reads in _ACTIVE:
            (reads.opened if is_read else reads.written).add(absolute)
        if is_read and _LOADING:
            OPENED_BY[_LOADING[-1]].add(absolute)


@contextmanager
def _readers_noted() -> Iterator[None]:
    changed: list[tuple[ModuleType, str, Any]] = []
    for module_name, name in _READERS:
        with suppress(ImportError):
            module = importlib.import_module(module_name)
            reader = getattr(module, name, None)
            if reader is not None and not hasattr(reader, "_is_noting"):
                changed.append((module, name, reader))
                setattr(module, name, _noting(reader))
    try:
        yield
    finally:
        for module, name, reader in changed:
            setattr(module, name, reader)


def _noting(reader: Callable[..., Any]) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Any:
        path = next(iter([*args, *kwargs.values()]), None)
        if isinstance(path, str | os.PathLike):
            _note(path)
        return reader(*args, **kwargs)

    vars(read)["_is_noting"] = True
    return read
