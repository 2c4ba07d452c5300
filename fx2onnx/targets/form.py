"""``Target``: what a runtime can run, as far as its table (``tables/NAME.json``) says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
    """``::operator`` -> attributes and optional inputs that the runtime does not have, as ``features.py`` names them."""
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
