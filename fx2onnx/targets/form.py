"""``Target``: what a runtime can run, as far as its table (``tables/NAME.json``) says, and a target by its name."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class RuntimeKernel:
    """One implementation of an operator."""

    first: int
    last: int
    """The versions of the operator that it is for, both included; 0 where it is for ``first`` alone, the newest then."""
    types: Mapping[str, frozenset[str]]
    """dtypes of each type parameter, or of an input by its name: ``{"T": {"float", "double"}}``. None: all."""

    def takes(self, version: int, types: Mapping[str, str]) -> bool:
        """Return whether it is for that version of the operator, where its type parameters are bound so; unknown ones fit."""
        if not (version == self.first or self.first <= version <= self.last):
            return False
        return all(types.get(name, "") in ("", *allowed) for name, allowed in self.types.items())

    def is_exactly(self, version: int, types: Mapping[str, str]) -> bool:
        """Return whether the kernel is for that version of the operator and for those dtypes; an unknown dtype does not match."""
        return version == self.first and all(types.get(name, "") in allowed for name, allowed in self.types.items())


@dataclass(frozen=True)
class Target:
    """A runtime, or a release of one."""

    name: str
    """The name as it is asked for: ``onnxruntime``, ``onnxruntime-1.19``."""
    runtime: str
    release: str = ""
    """The release that the table is of; empty where the runtime has no table."""
    opset: int | None = None
    """The newest opset of the standard domain; None where none is known."""
    ir_version: int | None = None
    source: str = ""
    date: str = ""
    is_tried: bool = True
    """True if the table was measured; otherwise it is what the runtime's documentation says."""
    casts: Mapping[str, str] = field(default_factory=dict)
    """dtypes that the runtime widens by itself where it has no kernel for them: ``{"float16": "float"}``."""
    from_opset: int = 1
    """The oldest opset of which something is known."""
    needs_static: bool = False
    """True if every size has to be known before a run."""
    rows: Mapping[str, Any] | None = None
    """The table: ``domain::operator`` -> kernels as they are in the file. None: nothing is known."""
    bodies: Mapping[str, Any] = field(default_factory=dict)
    """The table of operators that the runtime takes apart into others: versions are opsets of the model."""
    fails: Mapping[str, Any] | None = None
    """The table of operators and dtypes that were tried and do not run: of what stands neither here nor in ``rows``
    nothing is known. None: what does not stand in ``rows`` does not run.
    """
    lacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """``::operator`` -> attributes and optional inputs that the runtime does not have, as ``tools.target_features`` names them."""
    lacks_in: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The attributes and inputs that are missing in some dtypes alone: ``{"::ScatterND": {"reduction=add": "float16
    bfloat16"}}``."""

    def kernels(self, domain: str, op_type: str) -> tuple[RuntimeKernel, ...] | None:
        """The kernels of an operator, none if there are none; None where the target has no table."""
        return None if self.rows is None else self._read(self.rows.get(f"{domain}::{op_type}", ()))

    def knows(self, domain: str) -> bool:
        """Return whether the table has operators of the domain."""
        return any(operator.startswith(f"{domain}::") for operator in self.rows or ())

    def failures(self, domain: str, op_type: str) -> tuple[RuntimeKernel, ...]:
        """The operator's versions and dtypes that were tried and do not run."""
        return self._read((self.fails or {}).get(f"{domain}::{op_type}", ()))

    def functions(self, domain: str, op_type: str) -> tuple[RuntimeKernel, ...]:
        """The same for operators that are taken apart: ``first`` and ``last`` are opsets of the model."""
        return self._read(self.bodies.get(f"{domain}::{op_type}", ()))

    def _read(self, rows: Iterable[Sequence[Any]]) -> tuple[RuntimeKernel, ...]:
        return tuple(
            RuntimeKernel(first, last, {name: frozenset(words.split()) for name, words in types.items()})
            for first, last, types, since, until in rows
            if not self.release or numbers(since) <= numbers(self.release) <= numbers(until)
        )


_RELEASE = re.compile(r"\d+(\.\d+)*")


def problem_of(table: Any) -> str:
    """The reason why a table that somebody else wrote is not valid; empty where it is."""
    if not isinstance(table, dict):
        return "its table is no JSON object"
    for key, kind in (("source", str), ("date", str), ("releases", dict), ("kernels", dict)):
        if not isinstance(table.get(key), kind):
            return f"its table has no '{key}', or one that is no {'text' if kind is str else 'object'}"
    if not table["releases"] or not all(map(_RELEASE.fullmatch, table["releases"])):
        return "its table has no releases such as '1.2'"
    for key in ("kernels", "fails", "functions"):
        for operator, rows in table.get(key, {}).items():
            if "::" not in operator or not isinstance(rows, list) or not all(map(_is_row, rows)):
                return (
                    f"its table has {operator!r} under '{key}', which is no 'domain::operator' with a list of kernels"
                )
    return ""


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 5:
        return False
    first, last, types, since, until = row
    return (
        isinstance(first, int)
        and isinstance(last, int)
        and isinstance(types, dict)
        and all(isinstance(words, str) for words in types.values())
        and all(isinstance(release, str) and _RELEASE.fullmatch(release) for release in (since, until))
    )


def numbers(release: str) -> tuple[int, ...]:
    """A release, to be compared with others."""
    return tuple(int(part) for part in release.split("."))


ANY = "onnx"
"""ONNX's specification alone: no runtime in particular."""
DEFAULT = "onnxruntime"
GENAI = "onnxruntime-genai"
"""Runs folders of decoders, by the kernels of the onnxruntime that a release asks for."""
MICROSOFT = "com.microsoft"

DOCUMENTED_OPSETS = {"1.8": 14, "1.9": 15, "1.10": 15, "1.11": 16, "1.12": 17, "1.13": 17, "1.14": 18, "1.15": 18}
"""Releases of onnxruntime before those of the table: the compatibility table of its documentation, and for 1.15, which opens
files of opset 19 but has no kernels for them, measured."""


def names() -> list[str]:
    """The runtimes that ``find`` knows, those of other packages among them."""
    return sorted({*_own_names(), *(plugin.name for plugin in plugins.plugins(plugins.TARGETS))})


@lru_cache(maxsize=1)
def _own_names() -> tuple[str, ...]:
    return ANY, *(entry.name.removesuffix(".json") for entry in _tables().iterdir() if entry.name.endswith(".json"))


def _split(name: str) -> tuple[str, str]:
    """The runtime and its release, ``("onnxruntime-web", "1.30")``; other packages are asked where it is none of ours.

    Raises: UserError E001 where no runtime has that name.
    """
    if not isinstance(name, str):
        raise _unknown(repr(name))
    runtime, _, release = name.rpartition("-")
    for known in (_own_names, names):
        if name in known():
            return name, ""
        if runtime in known() and runtime != ANY and re.fullmatch(r"\d+(\.\d+)*", release):
            return runtime, release
    raise _unknown(name)


@lru_cache(maxsize=64)
def find(name: str) -> Target:
    """The target of that name. A release newer than all of its table is taken for the newest; ``onnxruntime`` without one is
    the release that is installed, so that files run where they are made, and the newest where none is.

    Raises: UserError E001 where no runtime, or no release, has that name.
    """
    runtime, release = _split(name)
    if runtime == ANY:
        return Target(name, ANY)
    table = _table(runtime)
    releases: dict[str, Any] = table["releases"]
    known = sorted(releases, key=numbers)
    if runtime == "onnxruntime" and release and numbers(release)[:2] < numbers(known[0]):
        opset = DOCUMENTED_OPSETS.get(".".join(release.split(".")[:2]))
        if opset is None:
            raise _unknown(name)
        return Target(name, runtime, opset=opset, source="onnxruntime's documentation", is_tried=False)
    at_hand = release or (_installed(known[0], known[-1]) if runtime == DEFAULT else known[-1])
    fitting = [each for each in known if numbers(each) <= numbers(at_hand)]
    if not fitting or numbers(release or known[-1])[0] > numbers(known[-1])[0]:
        raise _unknown(name)
    taken = fitting[-1]
    facts = releases[taken]
    kernels = _table(table["kernels_of"]) if "kernels_of" in table else table
    is_newer = bool(release) and numbers(release)[: len(numbers(known[-1]))] > numbers(known[-1])
    return Target(
        name,
        runtime,
        facts.get("kernels_of", taken),
        None if is_newer else facts.get("opset"),
        None if is_newer else facts.get("ir"),
        table["source"],
        table["date"],
        table.get("tried", True),
        kernels.get("casts", {}),
        kernels.get("from_opset", 1),
        table.get("static", False),
        kernels["kernels"],
        kernels.get("functions", {}),
        kernels.get("fails"),
        kernels.get("lacks", {}),
        kernels.get("lacks_in", {}),
    )


def _installed(oldest: str, newest: str) -> str:
    """The release of onnxruntime that is installed, or else the newest, within those of the table."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = re.match(r"\d+\.\d+", version(DEFAULT))
    except PackageNotFoundError:
        found = None
    return min(max(found.group() if found else newest, oldest, key=numbers), newest, key=numbers)


def check_fused(target: str) -> None:
    """Raise UserError E001 where the target has none of onnxruntime's own operators."""
    found = find(target)
    is_complete = found.fails is None and bool(found.kernels(MICROSOFT, "SkipLayerNormalization"))
    if found.runtime != "runner" and not is_complete:
        raise UserError(
            "E001",
            f"fused forms are not for the target {target!r}",
            why="they are made of onnxruntime's own operators (com.microsoft), which it does not have",
            next=f"leave out fused, or take a target that has them: {DEFAULT}, {GENAI}",
        )


def chosen_opset(target: str | None, asked: int | None, usual: int) -> int:
    """The opset to export with: the one asked for, else the usual one or the newest that the target takes.

    Raises: UserError E001 for an unknown target, E202 for an opset that it does not know.
    """
    newest = None if target is None else find(target).opset
    if newest is not None and asked is not None and asked > newest:
        raise UserError(
            "E202", f"{target} does not know opset {asked}", why=f"its newest is {newest}", next="leave out --opset"
        )
    return asked or min(usual, newest or usual)


@lru_cache(maxsize=8)
def _table(runtime: str) -> dict[str, Any]:
    if runtime in _own_names():
        own: dict[str, Any] = _read(_tables() / f"{runtime}.json")
        return own
    plugin = plugins.find(plugins.TARGETS, runtime)
    if plugin is None:
        raise _unknown(runtime)
    table: dict[str, Any] = plugin.using(lambda: _read(plugin.load()))
    problem = problem_of(table)
    if problem:
        raise plugin.unfit(problem)
    return table


def _tables() -> Traversable:
    from importlib.resources import files

    return files("fx2onnx.targets") / "tables"


def _read(file: Traversable) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


_PLACES = {
    **dict.fromkeys(
        ("browser", "web", "wasm", "webassembly", "webgpu", "webnn", "javascript", "js"), "onnxruntime-web"
    ),
    **dict.fromkeys(("apple", "ios", "macos", "mlprogram"), "coreml"),
    **dict.fromkeys(("qualcomm", "snapdragon", "hexagon"), "qnn"),
    **dict.fromkeys(("nvidia", "trt", "jetson"), "tensorrt"),
    "intel": "openvino",
    "cpu": "onnxruntime",
    "rust": "tract",
    "numpy": "runner",
}
"""Names of the place where a model runs, with the runtime that they stand for."""


def _unknown(name: str) -> UserError:
    known = [*names(), "onnxruntime-1.19"]
    near = difflib.get_close_matches(name, known, 4, 0.5) + [each for each in known if is_shortened(name, each)]
    near.sort(key=lambda each: (not is_shortened(name, each), -_shared(name, each)))
    near = [_PLACES[name.lower()]] if name.lower() in _PLACES else near
    guess = f"did you mean {near[0]!r}? " if near else ""
    return UserError(
        "E001",
        f"the target {name!r} is not known",
        next=f"{guess}{', '.join(names())}, or a release such as onnxruntime-1.19",
    )


def _shared(one: str, other: str) -> int:
    """The number of letters that both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def is_shortened(text: str, name: str) -> bool:
    """True if the letters of ``text`` stand in ``name`` in the same order, the first at its beginning: ``ort`` in ``onnxruntime``."""
    letters = iter(name)
    return bool(text) and text[0] == name[0] and all(letter in letters for letter in text)
