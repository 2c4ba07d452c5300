"""What a verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fx2onnx.base.errors import VerificationError


@dataclass(frozen=True, slots=True)
class Row:
    """One output of one engine on one set of inputs.

    ``max_abs_error`` and ``allowed`` are absolute; ``scale`` is the largest finite magnitude of the output in eager PyTorch,
    0 where no numbers were compared. ``problem`` says what is wrong beyond numbers: a dtype, a shape, an
    exception.
    """

    engine: str
    output: str
    max_abs_error: float
    allowed: float
    ok: bool
    inputs: str
    problem: str = ""
    scale: float = 0.0

    @property
    def relative_error(self) -> float:
        """The error as a share of the scale; of an output of zeros, the error itself."""
        return self.max_abs_error / (self.scale or 1.0)


@dataclass(slots=True)
class Verdict:
    """All comparisons. ``notes`` says what could not be compared and why."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add to the notes what is not there yet."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def ok(self) -> bool:
        """Whether something was compared and all of it agrees."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def worst(self, engine: str | None = None) -> Row | None:
        """The row whose error is largest against what is allowed; a row with a problem first."""
        rows = [row for row in self.rows if engine is None or row.engine == engine]
        return max(rows, key=lambda row: (bool(row.problem), row.max_abs_error / (row.allowed or 1e-45)), default=None)

    def describe(self) -> str:
        """One line for each row that fails, or one that all agree."""
        if self.ok:
            engines = sorted({row.engine for row in self.rows})
            return f"{len(self.rows)} comparisons agree ({', '.join(engines)})"
        lines = [
            f"{row.engine}: {row.output} ({row.inputs}): "
            + (row.problem or f"error {row.max_abs_error:.3g}, allowed {row.allowed:.3g}")
            for row in self.rows
            if not row.ok
        ]
        return "\n".join(lines or ["nothing was compared", *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {"ok": self.ok, "rows": [asdict(row) for row in self.rows], "notes": list(self.notes)}

    def raise_if_failed(self) -> None:
        """Raises VerificationError E501 unless everything agrees."""
        if not self.ok:
            raise VerificationError(
                "E501",
                "the exported model's outputs differ from eager PyTorch",
                why=self.describe(),
                next="report it with the model, or look at the first differing node",
            )
