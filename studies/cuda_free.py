"""A torch that was built for CUDA, without CUDA's libraries: they take gigabytes, and nothing of them runs without a GPU.

Each library that torch is linked with is replaced by one whose functions return an error; CUDA's runtime, which torch asks
whether there is a GPU, stays.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util|quadmath|gfortran|gomp)\.so|ld-linux")
_OF_CUDA = re.compile(r"cu|nv|nccl|__cuda")
_NO_DEVICE = 100


def free_of_cuda(site: Path) -> str:
    """Put the libraries that are missing into torch's own folder. Returns what brings CUDA's runtime; empty without CUDA."""
    folder = site / "torch" / "lib"
    needed: dict[str, set[str]] = defaultdict(set)
    undefined: dict[str, set[str]] = defaultdict(set)
    for library in sorted(folder.glob("*.so*")):
        _read(library, needed, undefined)
    own = {path.name for path in folder.iterdir()}
    for name in sorted(needed.keys() - own):
        if not _SYSTEM.match(name) and not name.startswith("libcudart"):
            _write(folder / name, {version: undefined[version] for version in needed[name] or {""}})
    runtimes = [name.rpartition(".")[2] for name in needed if name.startswith("libcudart.so")]
    if not runtimes:
        return ""
    major = int(runtimes[0])
    return f"nvidia-cuda-runtime-cu{major}" if major < 13 else f"nvidia-cuda-runtime=={major}.*"


def _read(library: Path, needed: dict[str, set[str]], undefined: dict[str, set[str]]) -> None:
    """Libraries that this one wants, with the versions of symbols that it wants of each; its undefined symbols by version."""
    wanted = ""
    for line in _output("readelf", "-dVW", library):
        if found := re.search(r"NEEDED.*\[(.*)\]", line):
            needed.setdefault(found[1], set())
        elif found := re.search(r"File: (\S+)", line):
            wanted = found[1]
        elif wanted and (found := re.search(r"Name: (\S+)\s+Flags", line)):
            needed[wanted].add(found[1])
    for line in _output("nm", "-D", "--undefined-only", library):
        symbol, _, version = line.split()[1].partition("@")
        if _OF_CUDA.match(symbol):
            undefined[version].add(symbol)


def _write(library: Path, symbols: dict[str, set[str]]) -> None:
    """A library that defines the symbols, by their version; ``""``: without."""
    script, source = library.with_suffix(".map"), library.with_suffix(".c")
    versions = [version for version in symbols if version]
    script.write_text("".join(f"{v} {{ global: {' '.join(f'{s};' for s in symbols[v])} }};\n" for v in versions))
    names = sorted({name for each in symbols.values() for name in each})
    source.write_text("".join(f"int {name}() {{ return {_NO_DEVICE}; }}\n" for name in names))
    scripts = [f"-Wl,--version-script,{script}"] if versions else []
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", library, f"-Wl,-soname,{library.name}", *scripts, source]
    subprocess.run(command, check=True)
    script.unlink()
    source.unlink()


def _output(*command: str | Path) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
