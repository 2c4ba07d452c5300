"""``fx2onnx certify BEFORE AFTER``: whether one file computes what another does, and how that is known of each node that changed.

*proved*: its value follows from the file before by equations that hold bit for bit. *bounded*: by equations of real numbers, so that
floats differ by rounding. *sampled*: neither, but random inputs gave the same. *refuted*: they did not. Equations are in ``rules.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public, public_methods
from fx2onnx.irx.given import as_file, name_of
from fx2onnx.irx.inference import without_maps
from fx2onnx.judge.engines import ENGINES, is_available
from fx2onnx.judge.feeds import conditions_of, inputs_of, taken_feeds
from fx2onnx.proof.derivation import Derivation, again, derivation_of
from fx2onnx.proof.nodes import Array, OpenedFile, may_step, reads_of
from fx2onnx.proof.replay import ListedEdit, Replay
from fx2onnx.proof.rules import Reader
from fx2onnx.proof.terms import Terms

KINDS = ("proved", "bounded", "sampled", "unknown", "refuted")
"""The kinds of results, from the strongest to the worst."""
SAMPLES = 2
"""Sets of random inputs."""
SAMPLE_SHARES = {"float16": 5e-3, "bfloat16": 4e-2}
SAMPLE_SHARE = 1e-4
"""The largest difference of samples as a share of a value's largest number, by dtype and in wider floats."""


@dataclass(frozen=True, slots=True)
class CertifiedNode:
    """A node of the file after that the file before does not have so, and how it is known to be right."""

    node: str
    op_type: str
    value: str
    kind: str
    why: str
    rules: str = ""
    """The rules of the file's derivation that made it; empty where there are none."""


@public_methods
@dataclass(repr=False)
class Certificate(Shown):
    """The reason for each changed node and output of a file to be as in the file before."""

    before: str
    after: str
    changed: list[CertifiedNode] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    """A kind by output."""
    unchanged: int = 0
    engine: str = ""
    """The engine that ran the samples; empty if none were needed or none runs the files."""
    steps: dict[str, str] = field(default_factory=dict)
    """The first operator, by output, at which a rounding of a bounded value may become a step: a comparison, an index, an integer."""
    fixed: list[str] = field(default_factory=list)
    """The inputs with a default that one of the files does not take: they are compared at their defaults."""
    roundings: float = 0.0
    """The largest number of roundings between constants of bounded nodes."""
    rules: dict[str, int] = field(default_factory=dict)
    """The number of times that each rule was applied, if the file after has a derivation."""

    @property
    def counts(self) -> dict[str, int]:
        """Changed nodes by kind."""
        found = Counter(each.kind for each in self.changed)
        return {kind: found[kind] for kind in KINDS if found[kind]}

    @property
    def ok(self) -> bool:
        """True if no output is refuted or unknown."""
        return not {"refuted", "unknown"} & set(self.outputs.values())

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {"ok": self.ok, "counts": self.counts, **asdict(self)}

    def _shown(self) -> dict[str, Any]:
        return {"ok": self.ok, "changed": len(self.changed), **self.counts, "unchanged": self.unchanged}


def start(file: OpenedFile, terms: Terms, given: Collection[str]) -> dict[str, int]:
    """The terms of a file's inputs and constants. ``given``: the weights that both files take as inputs, too."""
    found = {name: terms.constant(array) for name, array in file.constants.items()}
    for name in (*file.inputs, *given):
        found[name] = term = terms.of("input", name, found.get(name))
        terms.shaped(term, file.dims.get(name))
        terms.dtypes.setdefault(term, file.dtypes.get(name, ""))
    return found


class Certifying:
    """One comparison of two files, by equations that hold bit for bit alone, which takes less time, until ``add_reals``."""

    def __init__(self, before: OpenedFile, after: OpenedFile) -> None:
        self.before, self.after = before, after
        self.real = self.exact = Terms(is_real=False)
        self.given = [name for name in before.defaults if name in after.defaults]
        self.started: dict[tuple[bool, bool], dict[str, int]] = {}
        self.had_exact, self.had_real, self.plain = self._before()

    def add_reals(self) -> None:
        """Compare by equations of real numbers, too."""
        self.real = Terms(is_real=True)
        self.had_exact, self.had_real, self.plain = self._before()

    def _start(self, file: OpenedFile) -> tuple[dict[str, int], dict[str, int]]:
        """The exact and the real terms of a file's inputs and constants; large constants take most of the time."""
        for terms in (self.exact, self.real):
            key = file is self.after, terms.is_real
            if key not in self.started:
                self.started[key] = start(file, terms, self.given)
        found = (dict(self.started[file is self.after, terms.is_real]) for terms in (self.exact, self.real))
        return next(found), next(found)

    def _before(self) -> tuple[dict[int, str], dict[int, int], set[tuple[str, int]]]:
        """The exact terms of the file before with their names, the real ones with the exact ones, and which operators made them."""
        values, reals = self._start(self.before)
        named = {term: name for name, term in values.items()}
        found = {reals[name]: term for name, term in values.items()}
        made: set[tuple[str, int]] = set()
        for node, exact, real in self._walk(self.before, values, reals):
            for name, one, other in zip(filter(None, node.output), exact, real, strict=True):
                values[name], reals[name] = one, other
                named.setdefault(one, name)
                found.setdefault(other, one)
                made.add((node.op_type, one))
        self.values_before, self.reals_before = values, reals
        return named, found, made

    def _walk(
        self, file: OpenedFile, values: Mapping[str, int], reals: Mapping[str, int]
    ) -> Iterator[tuple[onnx.NodeProto, list[int], list[int]]]:
        exact, real = (Reader(terms, file.opsets, file.dims, file.dtypes) for terms in (self.exact, self.real))
        for node in file.proto.graph.node:
            found = exact.of(node, values)
            yield node, found, found if self.real is self.exact else real.of(node, reals)

    def compare(self, anchors: Mapping[str, bool]) -> tuple[dict[str, str], dict[str, float], list[str]]:
        """A kind for each value of the file after that the file before has, roundings of bounded ones, and unmatched names.

        anchors: whether values of one name were the same on samples.
        """
        values, reals = self._start(self.after)
        kinds: dict[str, str] = {}
        roundings: dict[str, float] = {}
        missing: list[str] = []
        for node, exact, real in self._walk(self.after, values, reals):
            for name, one, other in zip(filter(None, node.output), exact, real, strict=True):
                values[name], reals[name] = one, other
                if one in self.had_exact:
                    kinds[name] = "unchanged" if (node.op_type, one) in self.plain else "proved"
                elif other in self.had_real:
                    kinds[name], roundings[name] = "bounded", self._worst(other)
                    values[name] = self.had_real[other]
                elif anchors.get(name):
                    kinds[name] = "sampled"
                    values[name], reals[name] = self.values_before[name], self.reals_before[name]
                else:
                    missing.append(name)
        self.values, self.reals = values, reals
        return kinds, roundings, missing

    def fault(self, steps: Sequence[ListedEdit]) -> str:
        """Say why a derivation is not of these files; empty where it leads from the one before to the one after."""
        terms = self.values_before, self.values
        return Replay(self.before.proto, self.after.proto, steps, terms, self.exact.constants.keys()).fault()

    def _worst(self, term: int) -> float:
        """The roundings that constants inside of a term are apart."""
        worst, waiting, seen = 0.0, [term], set[int]()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            worst = max(worst, self.real.worst.get(each, 0.0))
            waiting += [part for part in _numbers(self.real.key(each)) if part < each]
        return worst

    def output_kind(self, index: int, sampled: Mapping[str, bool]) -> str:
        """The kind of knowledge of the output at a place: proved, bounded, sampled, unknown or refuted."""
        name, before = self.after.outputs[index], self.before.outputs[index]
        if self.values.get(name) == self.values_before.get(before):
            return "proved"
        if self.reals.get(name) == self.reals_before.get(before):
            return "bounded"
        return {True: "sampled", False: "refuted"}.get(sampled.get(name), "unknown")  # type: ignore[arg-type]


def _numbers(key: Any) -> Iterator[int]:
    for part in key:
        if isinstance(part, tuple):
            yield from _numbers(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            yield part


@public
def certify(before: Any, after: Any, *, derivation: bool = True) -> Certificate:
    """Return how each node that ``after`` has otherwise than ``before`` is known to compute the same.

    before, after: paths, bytes, ``onnx.ModelProto``, ``onnx_ir.Model`` or ``ExportResult``.
    derivation: check the list of rules that ``optimize`` wrote into ``after``, and name those of each changed node.

    Raises: UserError E302, E303 for a file that is none, E001 for files with other inputs or outputs; VerificationError E304 for a
    derivation that is damaged, of another file, or has a rule of an unknown version.
    """
    with as_file(before) as path, as_file(after) as other_path:
        found = _certify(OpenedFile(path), OpenedFile(other_path), derivation)
    return replace(found, before=name_of(before), after=name_of(after))


def _certify(one: OpenedFile, other: OpenedFile, derivation: bool) -> Certificate:
    apart = _inputs_apart(one, other)
    if apart:
        raise UserError(
            "E001",
            "the files have different inputs or outputs",
            why=apart,
            next="certify compares a file with what another file became: fx2onnx optimize BEFORE AFTER",
        )
    told = derivation_of(one, other) if derivation else Derivation()
    job = Certifying(one, other)
    kinds, roundings, missing = job.compare({})
    if any(job.output_kind(index, {}) != "proved" for index in range(len(other.outputs))):
        job.add_reals()
        kinds, roundings, missing = job.compare({})
    wrong = "" if told.steps is None else job.fault(told.steps)
    if wrong:
        what = f"the derivation in '{other.path}' does not lead to it from '{one.path}'"
        raise VerificationError("E304", what, why=wrong, next=again(one.path))
    anchors: dict[str, bool] = {}
    engine = ""
    unsure = [name for name in missing if name in job.values_before]
    open_kinds = {job.output_kind(index, {}) for index in range(len(other.outputs))}
    if "unknown" in open_kinds or (unsure and open_kinds != {"proved"}):
        engine, anchors = _sampled(one, other, unsure)
        kinds, roundings, missing = job.compare(anchors)
    found = Certificate(one.path, other.path, engine=engine, rules=dict(sorted(told.counts.items())))
    found.fixed = sorted({*one.defaults} ^ {*other.defaults})
    for index, name in enumerate(other.outputs):
        found.outputs[name] = job.output_kind(index, anchors)
    _judge_nodes(found, other, kinds, roundings, told)
    _judge_outputs(found, other)
    found.roundings = max(roundings.values(), default=0.0)
    return found


def _inputs_apart(one: OpenedFile, other: OpenedFile) -> str:
    """Say how the inputs or outputs of two files differ; empty where they are the same, whatever names sizes have."""
    if sorted(one.inputs) != sorted(other.inputs) or len(one.outputs) != len(other.outputs):
        return f"{one.inputs} -> {one.outputs}, and {other.inputs} -> {other.outputs}"
    for name in one.inputs:
        kinds = [file.dtypes.get(name, "") for file in (one, other)]
        sizes = [file.dims.get(name) for file in (one, other)]
        is_other = kinds[0] != kinds[1]
        if sizes[0] is not None and sizes[1] is not None:
            pairs = zip(*sizes, strict=False)
            is_other |= len(sizes[0]) != len(sizes[1])
            is_other |= any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        if is_other:
            told = [f"{kind} of sizes {[*map(str, each or ())]}" for kind, each in zip(kinds, sizes, strict=True)]
            return f"'{name}' is {told[0]}, and {told[1]}"
    return ""


def _judge_nodes(
    found: Certificate, file: OpenedFile, kinds: Mapping[str, str], roundings: Mapping[str, float], told: Derivation
) -> None:
    """A value that the file before does not have is as well known as those that are made of it, and made by their rules."""
    known: dict[str, str] = {}
    made = dict(told.places)
    for name, kind in found.outputs.items():
        if name not in kinds:
            known[name] = kind
    rows = []
    for node in reversed(file.proto.graph.node):
        own = [kinds.get(name) or known.get(name, "proved") for name in node.output if name]
        worst = max(own, key=lambda kind: ("unchanged", *KINDS).index(kind), default="proved")
        rules = [rule for name in node.output for rule in made.get(name, ())]
        for name in (*node.input, *reads_of(node)):
            if name and name not in kinds:
                made.setdefault(name, rules)
                handed = "proved" if worst == "unchanged" else worst
                known[name] = max(known.get(name, "proved"), handed, key=KINDS.index)
        if worst == "unchanged":
            found.unchanged += 1
            continue
        value = next((name for name in node.output if name), "")
        apart = max((roundings.get(name, 0.0) for name in node.output), default=0.0)
        why = {
            "proved": "by equations that hold bit for bit" if value in kinds else "part of what is",
            "bounded": f"equal over the reals; constants {apart:.3g} roundings apart"
            if value in kinds
            else "part of what is",
            "sampled": f"the same on {SAMPLES} sets of random inputs in {found.engine}",
            "unknown": "no equation, and no engine ran both files",
            "refuted": f"other numbers on random inputs in {found.engine}",
        }[worst]
        rows.append(CertifiedNode(node.name, node.op_type, value, worst, why, ", ".join(dict.fromkeys(rules))))
    found.changed = rows[::-1]


def _judge_outputs(found: Certificate, file: OpenedFile) -> None:
    """An output is as well known as the changed nodes that it is made by. A rounding may become a step behind them."""
    kind_of = {each.value: each.kind for each in found.changed}
    worst: dict[str, str] = {}
    steps: dict[str, str] = {}
    for node in file.proto.graph.node:
        reads = [*node.input, *reads_of(node)]
        kinds = [worst.get(name, "proved") for name in reads]
        own = next((kind_of[name] for name in node.output if name in kind_of), "proved")
        worst |= dict.fromkeys(node.output, max([own, *kinds], key=KINDS.index))
        step = next((steps[name] for name in reads if name in steps), "")
        if not step and "bounded" in (own, *kinds) and may_step(node, file.dtypes):
            step = f"{node.name or node.output[0]} ({node.op_type})"
        if step:
            steps |= dict.fromkeys(node.output, step)
    found.steps = {name: steps[name] for name in found.outputs if name in steps}
    for name, kind in found.outputs.items():
        if kind in ("proved", "bounded"):
            found.outputs[name] = max(kind, worst.get(name, "proved"), key=KINDS.index)


def _sampled(one: OpenedFile, other: OpenedFile, names: list[str]) -> tuple[str, dict[str, bool]]:
    """The engine that ran both files on random inputs, and for each output and value of those names, True if it was the
    same in both."""
    pairs = [
        *zip(other.outputs, one.outputs, strict=True),
        *((name, name) for name in names if name not in other.outputs),
    ]
    model = ir.from_proto(without_maps(one.proto))
    inputs, conditions = inputs_of(model), conditions_of(model)
    for engine in ("onnxruntime", "runner"):
        if not is_available(engine):
            continue
        try:
            runs = [
                ENGINES[engine](file.with_outputs([pair[place] for pair in pairs]))
                for place, file in ((1, one), (0, other))
            ]
            found: dict[str, bool] = {}
            for seed in range(SAMPLES):
                taken = next(iter(taken_feeds(inputs, runs[0], conditions, seed=seed)), None)
                if taken is None:
                    break
                wanted, given = _by_name(one, pairs, 1, taken.results), _by_name(other, pairs, 0, runs[1](taken.feeds))
                for name, before in pairs:
                    found[name] = found.get(name, True) and _is_close(given[name], wanted[before])
            if found:
                return engine, found
        except Exception:  # each engine has classes of its own; the next one may run the files
            continue
    return "", {}


def _by_name(file: OpenedFile, pairs: list[tuple[str, str]], place: int, results: list[Any]) -> dict[str, Any]:
    names = [*file.outputs, *(pair[place] for pair in pairs if pair[place] not in file.outputs)]
    return dict(zip(dict.fromkeys(names), results, strict=True))


def _is_close(got: Any, want: Any) -> bool:
    one, other = np.asarray(got), np.asarray(want)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "OUSb" or one.dtype.kind in "iu":
        return bool((one == other).all())
    wide: list[Array] = [each.astype(np.float64) for each in (one, other)]
    finite = np.isfinite(wide[1])
    if not np.array_equal(wide[0][~finite], wide[1][~finite], equal_nan=True) or not np.isfinite(wide[0][finite]).all():
        return False
    scale = float(np.abs(wide[1][finite]).max(initial=0.0))
    return bool(
        (
            np.abs(wide[0][finite] - wide[1][finite])
            <= SAMPLE_SHARES.get(other.dtype.name, SAMPLE_SHARE) * scale + 1e-7
        ).all()
    )
