"""A target by its name, ``onnxruntime`` or ``onnxruntime-1.19``, from the tables in ``tables/``."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.targets.form import Target, numbers, problem_of

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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


def _unknown(name: str) -> UserError:
    known = [*names(), "onnxruntime-1.19"]
    near = difflib.get_close_matches(name, known, 4, 0.5) + [each for each in known if is_shortened(name, each)]
    near.sort(key=lambda each: (not is_shortened(name, each), -_shared(name, each)))
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
