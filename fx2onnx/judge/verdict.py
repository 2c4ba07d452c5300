"""The verdict: the result of a verification."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.escape import Shown, plain
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.judge import Effort
from fx2onnx.judge.tolerance import Judged

METADATA_KEY = "fx2onnx.verdict"
"""Model metadata: the verdict as JSON, without its rows."""


UNSTEADY = "forward gives something else each time it is called with the same inputs"
"""The reason for comparing nothing."""
PLACEHOLDER = "torch.onnx.ops.symbolic in forward gives zeros in eager PyTorch, which has no numbers to compare with"
CHECK_ALONE = "check the operator by itself, with numbers of its own: fx2onnx run, or onnxruntime"
NO_KERNELS = "no engine has a kernel for every operator of the file"
REGISTER = (
    "register a NumPy kernel for the operator with @fx2onnx.runner.kernel (docs/adding_an_op.md), and verify again"
)
WRONG = "the exported model's outputs differ from eager PyTorch"
LOOK = "fx2onnx.locate(file, module, args).describe() names the first wrong node, and who is to blame"
OTHER_WEIGHTS = "give the module that was exported, with the same weights, or export this one again"
STABLE = "where a translation or a kernel of yours chooses among numbers, as a sort does, take the first of equal ones, as the module"
_OF_EQUAL = {"ties", "zeros", "signed", "large", "far", "huge", "infinite", "tiny"}
"""Kinds of inputs whose numbers are equal, or become equal where a function saturates."""
STEADIER = "hand what changes from call to call to forward as an argument, or hold it as a tensor, a number or a list"
WHERE_THERE_IS_MORE = "verify it where there is more memory, or time: fx2onnx verify MODEL SOURCE"


def check_effort(word: str) -> None:
    """Raises UserError E001 for a word that is no effort."""
    if word not in get_args(Effort):
        raise UserError("E001", f"effort={word!r} is not known", next=f"one of {', '.join(get_args(Effort))}")


@dataclass(frozen=True, slots=True)
class Row:
    """One output of one engine on one set of inputs.

    ``max_abs_error`` and ``allowed`` are absolute; ``scale`` is the largest finite magnitude of the output in eager PyTorch,
    0 where no numbers were compared. ``problem`` says what is wrong beyond numbers: a dtype, a shape, an
    exception. ``by`` is the comparison rule that settled it (docs/verify.md).
    """

    engine: str
    output: str
    max_abs_error: float
    allowed: float
    ok: bool
    inputs: str
    problem: str = ""
    scale: float = 0.0
    by: str = ""

    @property
    def relative_error(self) -> float:
        """The error as a share of the scale; of an output of zeros, the error itself."""
        return self.max_abs_error / (self.scale or 1.0)

    @property
    def share(self) -> float:
        """The error as a share of what is allowed."""
        return 0.0 if not self.max_abs_error else self.max_abs_error / (self.allowed or 1e-45)

    @staticmethod
    def of(engine: str, output: str, inputs: str, found: Judged) -> Row:
        """The row for a result of the tolerance model."""
        return Row(engine, output, found.error, found.allowed, found.ok, inputs, found.problem, found.scale, found.by)

    @staticmethod
    def failed(engine: str, output: str, inputs: str, problem: str) -> Row:
        """One that no numbers decide."""
        return Row(engine, output, float("inf"), 0.0, False, inputs, problem)


@dataclass(slots=True)
class Tried:
    """One set of inputs: its name in the rows, the sizes, the kind of values, and the engines that ran on it."""

    name: str
    sizes: dict[str, int]
    values: str
    engines: list[str]


@dataclass(slots=True)
class Range:
    """The range of one input over all sets of inputs: of floats the finite ones; ``constant`` where it kept its values."""

    dtype: str
    least: float | None = None
    largest: float | None = None
    shapes: list[list[int]] = field(default_factory=list)
    constant: bool = False

    def add(self, array: npt.NDArray[Any]) -> None:
        """One more array."""
        if list(array.shape) not in self.shapes:
            self.shapes.append(list(array.shape))
        if array.dtype.kind == "f":
            array = array[np.isfinite(array)]
        if array.size and array.dtype.kind != "V":
            least, largest = float(array.min()), float(array.max())
            self.least = least if self.least is None else min(self.least, least)
            self.largest = largest if self.largest is None else max(self.largest, largest)


@dataclass(frozen=True, slots=True)
class AnswerShift:
    """The distance of an engine's answers on the user's own inputs from those of eager PyTorch, by a metric of the
    task."""

    engine: str
    metric: str
    output: str
    value: float
    """The metric of the engine's answers against those of eager PyTorch, with the weights that the module has."""
    count: int
    """The answers that were compared: labels, words, pixels, or samples."""
    by_labels: float | None = None
    """The metric of the engine's answers against the user's labels."""
    eager_by_labels: float | None = None
    by_rounded: float | None = None
    """The metric against eager PyTorch with the weights rounded as a quantized file has them; None for other files."""

    def __str__(self) -> str:
        unit = " dB" * (self.metric == "psnr")
        text = f"{self.engine}: {self.metric} of {self.output} is {self.value:.6g}{unit} against eager PyTorch"
        text += f" ({self.count} compared)"
        if self.by_rounded is not None:
            text += f", {self.by_rounded:.6g} against it with rounded weights"
        if self.by_labels is None or self.eager_by_labels is None:
            return text
        return f"{text}; against the labels {self.by_labels:.6g}, eager PyTorch {self.eager_by_labels:.6g}"


@public_methods
@dataclass(slots=True, repr=False)
class Verdict(Shown):
    """All comparisons. ``notes`` says what could not be compared and why, ``left_out`` which inputs were not tried."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of the engines that ran, and of PyTorch."""
    seeds: list[int] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    ranges: dict[str, Range] = field(default_factory=dict)
    """The ranges of sizes, by input of the file."""
    assumptions: list[str] = field(default_factory=list)
    """The assumptions of the file on sizes: the inputs keep them, and lie at their borders."""
    baked: list[str] = field(default_factory=list)
    """Arguments that are constants of the file."""
    left_out: list[str] = field(default_factory=list)
    effort: Effort = "normal"
    """The planned effort; ``left_out`` has the inputs that it does not contain."""
    moved: list[AnswerShift] = field(default_factory=list)
    """With ``data`` and ``metric``: how far the answers move on the user's inputs."""
    incomplete: str = ""
    """The first thing that was planned and not done, since it took too long: another run may compare more."""
    unverified: str = ""
    """The reason for comparing nothing, such as too little memory."""
    wrong_on: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)
    """Arguments and keyword arguments of the first set of inputs on which a row failed."""

    def _shown(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "found": self.describe(),
            "engines": sorted({row.engine for row in self.rows}),
            "inputs": len(self.tried),
            "effort": self.effort,
            "notes": self.notes,
        }

    def __str__(self) -> str:
        return plain(self.describe())

    def note(self, text: str) -> None:
        """Add to the notes what is not there yet."""
        if text not in self.notes:
            self.notes.append(text)

    def leave_out_late(self, text: str) -> None:
        """Note what was planned, and left out since it took too long."""
        self.left_out.append(text)
        self.incomplete = self.incomplete or text

    def ran_out(self, text: str) -> None:
        """Note what was left out for lack of memory or time: all, unless something is compared."""
        self.left_out.append(text)
        self.unverified = self.unverified or text

    def give_up(self, text: str) -> None:
        """Nothing can be compared, and what was says nothing."""
        self.rows, self.notes, self.unverified = [], [], text

    def conclude(self, *of_faults: str) -> None:
        """End the comparison: everything that was compared is verified. Say where one engine agrees with eager PyTorch and another
        does not: then the file may be right. The notes ``of_faults`` stay only where something differs.
        """
        if self.rows:
            self.unverified = ""
        if not self.is_wrong:
            self.notes = [note for note in self.notes if note not in of_faults]
        for inputs in dict.fromkeys(row.inputs for row in self.rows if not row.ok):
            rows = [row for row in self.rows if row.inputs == inputs]
            wrong = {row.engine for row in rows if not row.ok}
            right = sorted({row.engine for row in rows} - wrong)
            if right:
                self.note(
                    f"{inputs}: {', '.join(right)} agrees with eager PyTorch, {', '.join(sorted(wrong))} does not: rather the "
                    "engine's fault than the export's; fx2onnx locate (fx2onnx.verify.locate) names the node"
                )
                return

    @property
    def ok(self) -> bool:
        """True if something was compared and all of it agrees."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def worst(self, engine: str | None = None) -> Row | None:
        """The row whose error is largest against what is allowed; a row with a problem first."""
        rows = [row for row in self.rows if engine is None or row.engine == engine]
        return max(rows, key=lambda row: (bool(row.problem), not row.ok, row.share), default=None)

    def describe(self) -> str:
        """One line for each row that fails, or one that all agree."""
        if self.ok:
            engines = sorted({row.engine for row in self.rows})
            late = f"; incomplete: {self.incomplete}" if self.incomplete else ""
            said = f"{len(self.rows)} comparisons agree ({', '.join(engines)}){late}"
            return "\n".join([said, *map(str, self.moved)])
        if self.unverified:
            return f"not verified: {self.unverified}"
        lines = [
            f"{row.engine}: {row.output or 'the file'} ({row.inputs}): "
            + (row.problem or f"error {row.max_abs_error:.3g}, allowed {row.allowed:.3g}")
            for row in self.rows
            if not row.ok
        ]
        return "\n".join(lines or ["nothing was compared", *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """The fields but ``wrong_on`` as JSON types, and ``worst``, the row nearest to what is allowed or farthest behind it."""
        worst = self.worst()
        fields = asdict(replace(self, wrong_on=None))
        del fields["wrong_on"]
        return {"ok": self.ok, "worst": None if worst is None else asdict(worst), **fields}

    def summary(self) -> dict[str, Any]:
        """``as_dict()`` with the rows that fail in the place of all."""
        failed = [asdict(row) for row in self.rows if not row.ok]
        return self.as_dict() | {"rows": failed, "comparisons": len(self.rows)}

    def write_into(self, path: str | os.PathLike[str]) -> None:
        """Put ``summary()`` into the metadata ``fx2onnx.verdict`` of the ONNX file. Weights beside it stay as they are."""
        from fx2onnx.irx.model_files import add_metadata

        add_metadata(path, {METADATA_KEY: json.dumps(self.summary())})

    @property
    def is_wrong(self) -> bool:
        """True if something does not agree."""
        return not all(row.ok for row in self.rows)

    def raise_if_failed(self, what: str = WRONG, advice: str = LOOK) -> None:
        """Raises VerificationError E501 unless everything agrees, E502 where nothing was compared for a reason."""
        if self.unverified:
            raise self.not_verified("the exported model is not verified")
        if not self.ok:
            wrong = {row.inputs.rpartition(", ")[2] for row in self.rows if not row.ok}
            first = [OTHER_WEIGHTS] if "weights" in wrong else []
            last = [STABLE] if wrong <= _OF_EQUAL and not first else []
            steps = [*first, advice, *last] if advice == LOOK else advice
            raise VerificationError("E501", what, why=self.describe(), next=steps)

    def not_verified(self, what: str) -> VerificationError:
        """E502."""
        ways = {UNSTEADY: STEADIER, PLACEHOLDER: CHECK_ALONE, NO_KERNELS: REGISTER}
        first = next((ways[why] for why in ways if self.unverified.startswith(why)), WHERE_THERE_IS_MORE)
        without = "do without: verify=False, or --no-verify; the file is the same"
        return VerificationError("E502", what, why=self.unverified, next=[first, without])
