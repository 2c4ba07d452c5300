"""``fx2onnx doctor``: what is installed here, what is missing and what it is for, and which engines run."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import typer

from fx2onnx.base.errors import first_line
from fx2onnx.base.metadata import VERSION
from fx2onnx.base.packages import EXTRAS
from fx2onnx.cli import options
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.cli.progress import working

NEEDED = ("numpy", "onnx", "onnx_ir", "ml_dtypes")
PURPOSES = {
    "torch": "export, verify, locate, profile",
    "onnxscript": "operators that only torchlib translates",
    "onnxruntime": "a second engine for verify; the default of generate and train",
    "transformers": "hf: sources and export-folder",
    "torchvision": "torchvision: sources",
    "timm": "timm: sources",
    "sentence_transformers": "sentence-transformers: sources",
    "diffusers": "diffusers: sources and pipelines of export-folder",
    "gguf": "gguf: sources",
    "ultralytics": "ultralytics: sources",
    "numba": "compiled kernels of the runner",
    "sklearn": "train --data digits",
    "openvino": "verify --engine openvino",
    "distributed": "export-many --cluster",
}
"""Packages that are not needed for everything, by the name that Python imports, and what they are for."""
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "sentence_transformers": "sentence-transformers"}


class Package(NamedTuple):
    """A package: its version (empty where it is missing), and the error of its import."""

    name: str
    version: str
    purpose: str = ""
    error: str = ""


@reports_errors
def doctor_command(json_output: options.Json = False) -> None:
    """Show what is installed, missing or broken. The exit code is 2 where something cannot be used."""
    from fx2onnx.judge.engines import DEFAULT, SESSIONS, is_available

    with working("import what is installed"):
        packages = [*(_looked_at(name) for name in NEEDED), *(_looked_at(name, why) for name, why in PURPOSES.items())]
    engines = [name for name in DEFAULT if is_available(name)]
    found: dict[str, Any] = {
        "fx2onnx": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": [each._asdict() for each in packages],
        "engines": {"verify": engines, "generate": next(name for name in SESSIONS if is_available(name))},
        "blas": blas(),
        "advice": [*_advice(packages)],
    }
    if json_output:
        print_json(found)
    else:
        _print(found, packages)
    if any(each.error for each in packages) or any(not each.version for each in packages if not each.purpose):
        raise typer.Exit(2)


def _looked_at(name: str, purpose: str = "") -> Package:
    try:
        installed = version(_DISTRIBUTIONS.get(name, name))
    except PackageNotFoundError:
        if importlib.util.find_spec(name) is None:
            return Package(name, "", purpose)
        installed = "of unknown version"
    try:
        importlib.import_module(name)
    except Exception as error:  # an import runs the package's own code
        return Package(name, installed, purpose, f"{type(error).__name__}: {first_line(error)[:200]}")
    return Package(name, installed, purpose)


def blas() -> dict[str, Any]:
    """The library that NumPy multiplies matrices with, the CPU that it chose its kernels for, and what pins that choice."""
    import numpy as np

    shown: Any = np.show_config(mode="dicts")
    built = shown["Build Dependencies"]["blas"]
    pin = os.environ.get("OPENBLAS_CORETYPE", "")
    return {"library": f"{built.get('name', '')} {built.get('version', '')}".strip(), "core": _core(), "pin": pin}


def _core() -> str:
    """The name that OpenBLAS has for this CPU; empty for other libraries."""
    import numpy as np

    folder = Path(np.__file__).parent
    for file in (*folder.with_name("numpy.libs").glob("*openblas*"), *(folder / ".dylibs").glob("*openblas*")):
        library = ctypes.CDLL(str(file))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                asked = getattr(library, name)
                asked.restype = ctypes.c_char_p
                return str(asked().decode())
    return ""


def _advice(packages: list[Package]) -> list[str]:
    """The commands to type for packages that are missing or broken, and for slow settings."""
    said = []
    wanted: dict[str, list[str]] = {}
    for each in packages:
        package = _DISTRIBUTIONS.get(each.name, each.name)
        if each.error:
            said.append(
                f"{each.name} {each.version} cannot be imported ({each.error}): pip install --upgrade {package}"
            )
        elif not each.version:
            what = f"'fx2onnx[{EXTRAS[each.name]}]'" if each.name in EXTRAS else package
            wanted.setdefault(what, []).append(each.purpose or "everything")
    said += [f"pip install {what}   for {'; '.join(purposes)}" for what, purposes in wanted.items()]
    if pin := os.environ.get("OPENBLAS_CORETYPE"):
        said.append(f"unset OPENBLAS_CORETYPE   it pins OpenBLAS to kernels for {pin}, which may halve its speed")
    return said


def _print(found: dict[str, Any], packages: list[Package]) -> None:
    blas_line = ", ".join(filter(None, (found["blas"]["library"], found["blas"]["core"])))
    rows = [
        ("fx2onnx", found["fx2onnx"]),
        ("python", f"{found['python']} ({sys.executable})"),
        ("platform", f"{found['platform']}, {found['cpus']} CPUs"),
        *(
            (each.name, each.version if not each.error else f"{each.version}, broken")
            for each in packages
            if each.version
        ),
        *((each.name, f"missing: {each.purpose}") for each in packages if not each.version),
        (
            "engines",
            f"verify runs {', '.join(found['engines']['verify'])}; generate and train {found['engines']['generate']}",
        ),
        ("BLAS", blas_line),
    ]
    rows += [("" if number else "to do", line) for number, line in enumerate(found["advice"])]
    width = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        print(f"{name:<{width}}{text}")
