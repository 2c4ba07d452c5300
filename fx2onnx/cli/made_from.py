"""The content that an exported file was made from, and whether it is still the same: code, files that were read, versions."""

from __future__ import annotations

import ast
import importlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

from fx2onnx.base import plugins
from fx2onnx.base.metadata import VERSION
from fx2onnx.base.source import PACKAGE_FOLDER, file_of
from fx2onnx.cli.job import Job
from fx2onnx.files.digest import digest_of, known_digest
from fx2onnx.irx.model_files import is_file_of
from fx2onnx.sources.inputs import input_files
from fx2onnx.sources.registry import KINDS, kind_of
from fx2onnx.sources.zoo import registry_name

_READERS = (
    ("safetensors", "safe_open"), ("safetensors.torch", "safe_open"), ("safetensors.torch", "load_file"),
    ("torch", "from_file"), ("torch.jit", "load"), ("torch.export", "load"),
)  # fmt: skip
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
"""The files that a module's top-level code opened, which later jobs of this process do not open again."""
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
    """Return whether a file is one of Python, of an installed package or of fx2onnx, which versions tell."""
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


MadeFrom: TypeAlias = dict[str, dict[str, str | None]]
"""``modules`` and ``files`` with the digest of each, and ``versions`` of packages."""

_ALWAYS = ("torch", "onnx", "onnx-ir", "onnxscript", "numpy")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/")
_NOT_READ = (".egg-info", ".dist-info", "__pycache__")
_LOADS_BY_NAME = frozenset({"__import__", "exec", "eval", "importlib", "runpy", "pkgutil"})
"""Names by which code loads other code: anything that is loaded may then be a part of the result."""
_KEEPS_RESULTS = ("cache", "global ")
"""Words of code that may read a file in one job and use it in the next."""


def made_from(job: Job, reads: Reads) -> MadeFrom:
    """The content that the finished ``job`` was made from. A file that was changed meanwhile has no digest: it never fits."""
    own, roots = _roots(job.source)
    modules = _closure(roots, own)
    paths = {str(path.absolute()) for path in _checkpoint(job)} | reads.opened
    for name, module in modules.items():
        paths |= OPENED_BY.get(name, set())
        if _code(module).keeps_results:
            earlier = _OPENED_WITH.setdefault(str(module.__file__), set())
            paths |= earlier
            earlier |= {path for path in reads.opened if not path.endswith(".py")}
    found: MadeFrom = {"modules": {}, "files": {}, "versions": _versions(job, modules)}
    for name, module in modules.items():
        path = os.path.abspath(str(module.__file__))
        paths.discard(path)
        if file_of_module(name) == path:
            found["modules"][name] = compiled_digest(module) or known_digest(path)
        else:
            found["files"][_shown(path)] = known_digest(path)
    for path in sorted(paths - reads.written):
        if _counts(path, job):
            changed = os.stat(path).st_mtime_ns >= reads.started_ns
            found["files"][_shown(path)] = None if changed else known_digest(path)
    return found


def is_current(job: Job, found: Any) -> bool:
    """Return whether all that an earlier run of ``job`` noted as ``found`` is what it was, and nothing came to its checkpoint."""
    if not isinstance(found, dict) or not all(isinstance(found.get(key), dict) for key in _KEYS):
        return False
    modules, files, versions = (found[key] for key in _KEYS)
    if None in (*modules.values(), *files.values()):
        return False
    return (
        all(version_of(name) == version for name, version in versions.items())
        and all(_shown(str(path.absolute())) in files for path in _checkpoint(job))
        and all(known_digest(path) == digest for path, digest in files.items())
        and all(known_digest(file_of_module(name) or "") == digest for name, digest in modules.items())
    )


_KEYS = ("modules", "files", "versions")
_OPENED_WITH: dict[str, set[str]] = {}
"""The files that jobs opened in this process, by the file of a module that keeps results."""


def _checkpoint(job: Job) -> Iterator[Path]:
    """The files of a checkpoint or a state dict that the job names; a factory's module is found in another way."""
    own, _ = _roots(job.source)
    for path in input_files(job.source, job.source_options.get("weights")):
        if not (own and path.suffix == ".py") and os.path.isfile(path):
            yield path


def _roots(source: str) -> tuple[str, list[str]]:
    """The top-level package of a factory, empty for other kinds; and the names of modules that the source begins with."""
    prefix = source.partition(":")[0]
    others = [plugin.entry.module for group in plugins.GROUPS for plugin in plugins.plugins(group)]
    if prefix == "zoo":
        return "", [registry_name(), *others]
    if prefix in KINDS or kind_of(prefix) is not None:
        return "", others
    name = os.path.basename(prefix).removesuffix(".py") if prefix.endswith(".py") else prefix
    return name.partition(".")[0], [name, *others]


def _closure(roots: Iterable[str], own: str) -> dict[str, ModuleType]:
    """The loaded modules that ``roots`` import, at any depth, as far as they are no library's. ``own`` is none."""
    local = {name: module for name, module in list(sys.modules.items()) if _is_local(name, module, own)}
    found: dict[str, ModuleType] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        waiting += [parent for parent in (name.rpartition(".")[0],) if parent and parent not in found]
        if name in found or name not in local:
            continue
        found[name] = local[name]
        code = _code(local[name])
        waiting += local if code.loads_by_name else code.imports
    return found


def _is_local(name: str, module: ModuleType, own: str) -> bool:
    path = file_of(module)
    if path is None or name == "__main__" or not os.path.isfile(path):
        return False
    return (bool(own) and name.partition(".")[0] == own) or not is_library(os.path.abspath(path))


@dataclass(frozen=True)
class _Code:
    """The imports that the text of a module shows."""

    imports: tuple[str, ...] = ()
    """Names that may be modules."""
    loads_by_name: bool = False
    keeps_results: bool = False


def _code(module: ModuleType) -> _Code:
    path = os.path.abspath(str(module.__file__))
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    return _code_of(path, package, known_digest(path)) if path.endswith(".py") else _Code()


@lru_cache(maxsize=4096)
def _code_of(path: str, package: str, digest: str | None) -> _Code:
    try:
        text = Path(path).read_bytes()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return _Code(loads_by_name=True, keeps_results=True)
    imports: dict[str, None] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            imports |= dict.fromkeys([base, *(f"{base}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Name):
            used.add(node.id)
    used |= {name.partition(".")[0] for name in imports}
    keeps = any(word.encode() in text.lower() for word in _KEEPS_RESULTS)
    return _Code(tuple(imports), bool(used & _LOADS_BY_NAME), keeps)


def file_of_module(name: str) -> str | None:
    """The path of the source that ``import name`` would find first, without importing anything."""
    if name.endswith(".py"):
        return os.path.abspath(name) if os.path.isfile(name) else None
    folders = [os.getcwd(), *sys.path] if os.getcwd() not in sys.path else list(sys.path)
    *parents, last = name.split(".")
    for parent in parents:
        found = [os.path.join(folder or os.getcwd(), parent) for folder in folders]
        whole = [path for path in found if os.path.isfile(os.path.join(path, "__init__.py"))]
        folders = whole[:1] or [path for path in found if os.path.isdir(path)]
    for folder in folders:
        path = os.path.join(folder or os.getcwd(), last)
        for candidate in (os.path.join(path, "__init__.py"), *(path + end for end in (*EXTENSION_SUFFIXES, ".py"))):
            if os.path.isfile(candidate):
                return os.path.abspath(candidate)
    return None


def _counts(path: str, job: Job) -> bool:
    parts = path.split(os.sep)
    is_ours = any(part.startswith(".fx2onnx-") for part in parts) or is_file_of(path, job.output)
    return (
        not is_ours
        and not path.startswith(_SYSTEM)
        and not any(part.endswith(_NOT_READ) for part in parts)
        and not is_library(path)
        and os.path.isfile(path)
        and not _is_loaded_source(path)
    )


def _is_loaded_source(path: str) -> bool:
    """Return whether the path is a loaded module's, which counts where it is among those of the job alone."""
    return path.endswith(".py") and any(file_of(module) == path for module in list(sys.modules.values()))


def _shown(path: str) -> str:
    """Below the working directory the relative path, so that a folder may move as a whole."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)


def _versions(job: Job, modules: dict[str, ModuleType]) -> dict[str, str | None]:
    """Versions of Python, fx2onnx and the packages that every export, the kind of the source or the imports of its code use."""
    names = {"python", "fx2onnx", *_ALWAYS, *(["onnxruntime"] if job.options.verify else [])}
    kind = kind_of(job.source.partition(":")[0])
    imported = {kind.package} if kind is not None and kind.package else set()
    for module in modules.values():
        imported |= {name.partition(".")[0] for name in _code(module).imports}
    packages = _distributions() if imported else {}
    names |= {name for each in imported for name in packages.get(each, ())}
    names |= {
        plugin.entry.dist.name for group in plugins.GROUPS for plugin in plugins.plugins(group) if plugin.entry.dist
    }
    return {name: version_of(name) for name in sorted(names)}


@lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def version_of(name: str) -> str | None:
    """The version of an installed distribution; None where there is none."""
    if name == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    if name == "fx2onnx":
        return VERSION + _checkout()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _checkout() -> str:
    """A digest of fx2onnx's code where it lies in a checkout, whose version stands still; empty for an installed package."""
    if "site-packages" in PACKAGE_FOLDER:
        return ""
    files = sorted(path for path in Path(PACKAGE_FOLDER).rglob("*.py"))
    return "+" + digest_of("".join(f"{path.name} {known_digest(path)}\n" for path in files).encode())
