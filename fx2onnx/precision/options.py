"""``Precision``: what is asked for. Imports no onnx."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fx2onnx.base.errors import UserError, unknown_word
from fx2onnx.base.options import PRECISION, documented, option
from fx2onnx.base.stack_frames import public_methods

KINDS = ("float16", "bfloat16", "mixed")
OF_MODULES = ("float32", "float64")
"""The dtypes to which a module is cast before it is exported."""
IO = ("float32",)
METADATA_KEY = "fx2onnx.precision"
"""The key in the model's metadata of a JSON object with ``dtype`` (float16 or bfloat16), ``asked`` and ``io``."""
EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895314e38}
LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
"""The least normal number of each dtype: smaller ones have fewer digits."""
LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-134}
"""The number of each dtype below which a number becomes 0."""


@public_methods
@documented
@dataclass(frozen=True)
class Precision:
    """Convert weights and compute to 16 bits. Checked when made: UserError E001.

    ``float16`` and ``bfloat16`` are for every node that bears it, ``mixed`` for matrix products and convolutions alone, with
    float32 inputs and outputs. ``keep`` is a pattern or a list of them, such as ``Softmax``. ``samples`` are further inputs to
    measure on: tuples or dicts of arguments for ``export``, dicts of arrays for ``optimize``.
    """

    dtype: str = option(
        ...,
        "Convert weights and compute to float16, bfloat16 or mixed, except where a measurement needs float32 "
        "(docs/precision.md).",
        panel=PRECISION,
    )
    io: str | None = option(None, "float32: with --dtype, inputs and outputs keep their dtype.", panel=PRECISION)
    keep: Sequence[str] | str = option(
        (),
        "Keep nodes (by name, output or operator) in float32 with --dtype, repeatable.",
        panel=PRECISION,
        kind=list[str],
        metavar="PATTERN",
    )
    samples: Sequence[Any] = ()

    def __post_init__(self) -> None:
        if self.dtype not in KINDS:
            raise unknown_word("dtype", self.dtype, KINDS)
        if self.io is not None and self.io not in IO:
            raise UserError("E001", f"io {self.io!r:.40} is not known", next="float32, or nothing: as dtype says")

    @staticmethod
    def of(dtype: Precision | str | None, io: str | None) -> Precision | None:
        """The precision that the two keywords ask for. Raises UserError E001."""
        if type(dtype).__name__ == "dtype":  # torch.float16, np.dtype("float16")
            dtype = str(dtype).removeprefix("torch.")
        if isinstance(dtype, Precision):
            if io is not None and io != dtype.io:
                raise UserError("E001", "io= stands beside a Precision", next="say it there: Precision(..., io=...)")
            return dtype
        if dtype is None:
            if io is not None:
                raise UserError("E001", "io= is for dtype=", next='add dtype="float16"')
            return None
        return Precision(dtype, io)

    @property
    def word(self) -> str:
        """``float16`` or ``bfloat16``."""
        return "float16" if self.dtype == "mixed" else self.dtype

    @property
    def unit(self) -> float:
        """The largest relative error of a number that is rounded."""
        return EPSILONS[self.word] / 2

    @property
    def largest(self) -> float:
        return LARGEST[self.word]

    @property
    def keeps_io(self) -> bool:
        """True if inputs and outputs stay as they are."""
        return self.io == "float32" or self.dtype == "mixed"

    def is_kept(self, *names: str) -> bool:
        """Return whether the user wants the node of one of these names in float32."""
        patterns = (self.keep,) if isinstance(self.keep, str) else self.keep
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)

    def metadata(self) -> str:
        """The text under ``METADATA_KEY``."""
        return json.dumps({"dtype": self.word, "asked": self.dtype, "io": "float32" if self.keeps_io else self.word})


def precision_or_dtype(dtype: str | Precision | None, io: str | None) -> tuple[Precision | None, str | None]:
    """The precision that a dtype asks for, or else what a source is asked for: ``float32`` and ``float64`` are a module's own."""
    if isinstance(dtype, str) and dtype not in KINDS:
        if dtype not in OF_MODULES:
            raise unknown_word("dtype", dtype, (*KINDS, *OF_MODULES))
        return Precision.of(None, io), dtype
    return Precision.of(dtype, io), None


def word_in(metadata: Mapping[str, str]) -> str:
    """``float16`` or ``bfloat16``, where a file says that it computes in 16 bits; else empty."""
    try:
        found = json.loads(metadata.get(METADATA_KEY) or "{}").get("dtype", "")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) and found in EPSILONS else ""
