"""``fx2onnx list [KIND] [PATTERN]`` and ``fx2onnx ops [--opset N] [--missing] [PATTERN]``: what there is; and ``fx2onnx doctor``:
what is installed here, what is missing and what it is for."""

from __future__ import annotations

import ctypes
import fnmatch
import importlib
import importlib.util
import json
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import typer

import fx2onnx
from fx2onnx.base.errors import UserError, first_line
from fx2onnx.base.metadata import VERSION
from fx2onnx.base.opsets import OPSET_MAX, check_opset
from fx2onnx.base.packages import EXTRAS
from fx2onnx.cli import options
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors, show_error
from fx2onnx.cli.progress import working
from fx2onnx.exporting.options import ExportOptions


@reports_errors
def list_command(
    kind: Annotated[str | None, options.argument("[KIND]", "zoo, torchvision, timm, hf or file.")] = None,
    pattern: Annotated[
        str | None,
        options.argument("[PATTERN]", "Part of a name, or a shell pattern such as 'vit_*'."),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """List the models of a source, one name a line. Without a kind, list the kinds of source."""
    from fx2onnx import sources
    from fx2onnx.cli.progress import working

    if kind is None:
        _list_kinds(json_output)
        return
    with working(f"list {kind}"):
        known = sources.names(kind.rstrip(":"))
    if not known:
        raise UserError("E601", f"the models of {kind} cannot be listed", next="fx2onnx list shows how one is named")
    result = [name for name in known if pattern is None or fits(name, pattern)]
    if not result:
        from fx2onnx.sources.registry import fail_unknown

        fail_unknown(f"{kind} model", pattern or "", known, hint=f"fx2onnx list {kind}")
    if json_output:
        print_json(result)
    else:
        print("\n".join(result))


def fits(name: str, pattern: str) -> bool:
    """Return whether ``pattern`` is a shell pattern for ``name``, or a part of it in any case."""
    if any(character in pattern for character in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.lower() in name.lower()


def _list_kinds(json_output: bool) -> None:
    from fx2onnx.sources.registry import FACTORY, kind_of, prefixes

    kinds = [FACTORY]
    for prefix in reversed(prefixes()):
        try:
            kinds[:0] = filter(None, [kind_of(prefix)])
        except UserError as error:  # the others are listed all the same
            show_error(error)
    if json_output:
        print_json([{"kind": kind.prefix, "summary": kind.summary, "example": kind.example} for kind in kinds])
        return
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(3)
    for kind in kinds:
        table.add_row(Text(f"{kind.prefix}:", "bold"), kind.summary, Text(kind.example, "dim"))
    console().print(table)


OVERLOADS = Path(fx2onnx.__file__).with_name("aten_map") / "overloads.json"
ENTRY, DECOMPOSITION, TORCHLIB, REFUSED, MISSING = "entry", "decomposition", "torchlib", "refused", "missing"


class ListedRow(TypedDict):
    """One overload. ``since``: the lowest opset that expresses some of its calls and, where that is another, the lowest
    that expresses all that any opset does. ``measured``: whether these were found by trying calls of the operator
    database at every opset; else they are what the entry declares. ``form``: the ONNX form in words.
    """

    overload: str
    source: str
    since: list[int]
    measured: bool
    complex: bool
    form: str


@reports_errors
def ops_command(
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("opset_version",))],
    pattern: Annotated[
        str | None,
        options.argument("[PATTERN]", "Part of an overload's name, or a shell pattern such as 'aten.conv*'."),
    ] = None,
    missing: Annotated[
        bool, options.flag("--missing", "List what has no ONNX form instead (with --opset: in that opset).")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """List the ATen operators that can be exported: overloads with an ONNX form, and where it comes from."""
    opset: int | None = exported["opset_version"]
    if opset is not None:
        check_opset(opset, "--opset")
    every = known_overloads()
    result = [
        row
        for row in every
        if (pattern is None or fits(row["overload"], pattern)) and is_missing(row, opset or OPSET_MAX) == missing
    ]
    if not result and pattern is not None and not any(fits(row["overload"], pattern) for row in every):
        from fx2onnx.sources.registry import fail_unknown

        spaces = {row["overload"].partition(".")[0] for row in every}
        space = re.match(r"(\w+)(::|\.\w+\.\w+$)", pattern)
        if space is not None and space[1] not in spaces:
            step = "this list has PyTorch's operators only: write a translation of your own (docs/adding_an_op.md)"
            raise UserError("E601", f"no operator of the namespace '{space[1]}' is listed", next=step)
        fail_unknown("overload", pattern, [row["overload"] for row in every], hint="fx2onnx ops")
    if json_output:
        print_json(result)
    else:
        hidden = 0 if pattern is None or missing else sum(fits(row["overload"], pattern) for row in every) - len(result)
        _print_table(result, f"; {hidden} more have no ONNX form: --missing" if hidden else "")


def known_overloads() -> list[ListedRow]:
    """A row for each overload, as `make families` found them: nothing else is imported to list them."""
    places: list[ListedRow] = json.loads(OVERLOADS.read_text(encoding="utf-8"))
    return places


def is_missing(row: ListedRow, opset: int) -> bool:
    """Return whether an export at ``opset`` would refuse the overload for want of a form."""
    return row["source"] in (MISSING, REFUSED) or bool(row["since"] and row["since"][0] > opset)


def _print_table(result: list[ListedRow], more: str) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(4)
    table.add_row(*(Text(title, "bold") for title in ("overload", "opset", "source")), "")
    for row in result:
        shown = ", ".join(f"{opset}+" for opset in row["since"]) if row["source"] in (ENTRY, TORCHLIB) else ""
        opset = shown or "-"
        table.add_row(row["overload"], opset, row["source"], Text("complex too" if row["complex"] else "", "dim"))
    console().print(table)
    console(stderr=True).print(Text(f"{len(result)} overloads{more}", "dim"))


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
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

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
    table = unheaded_table(2)
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    console().print(table)
