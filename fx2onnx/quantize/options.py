"""``Quantize``: what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fx2onnx.base.errors import UserError, unknown_word
from fx2onnx.base.options import PRECISION, documented, option
from fx2onnx.base.stack_frames import public_methods

KINDS = ("int8", "int4", "uint4", "int2", "ternary", "nf4", "float8")
FORMATS = ("auto", "qdq", "matmulnbits")
ACTIVATIONS = ("auto", "float32", "int8")
METHODS = ("nearest", "gptq", "awq")
USUAL_BLOCK = {"int4": 32, "uint4": 32, "int2": 32, "ternary": 32, "nf4": 64}
"""Numbers that share a scale where nothing is asked; of the other kinds one row (an output channel) does."""
BLOCKS_FROM, FLOAT8_FROM, ROWS_FROM = 21, 19, 13
"""Opsets from which DequantizeLinear takes blocks and codes of 4 bits, float8, and a scale a row."""
LEAST_BLOCK, MOST_BLOCK = 16, 1 << 16


@public_methods
@documented
@dataclass(frozen=True)
class Quantize:
    """Store weights of matrix products and convolutions in fewer bits. Checked when made: UserError E001.

    ``exclude`` is a pattern or a list of them, such as ``lm_head*``. ``calibration`` is an ``.npz`` file, a dict of arrays by the
    names of the inputs, or a list of such dicts.
    """

    kind: str = option(
        ...,
        "Store weights as int8, int4, uint4, int2, ternary, nf4 or float8 (docs/quantization.md).",
        "--quantize",
        panel=PRECISION,
    )
    block: int | None = option(
        None,
        "Elements per scale (block size). 0 means one scale per row. Default: 32 (nf4: 64) for 2 and 4 bits, 0 for 8 bits.",
        panel=PRECISION,
    )
    exclude: Sequence[str] | str = option(
        (), "Patterns of names of weights that stay in float.", panel=PRECISION, kind=list[str], metavar="PATTERN"
    )
    format: str = option(
        "auto", "qdq, matmulnbits (onnxruntime's product), or auto: matmulnbits for 2 and 4 bits.", panel=PRECISION
    )
    embeddings: bool = option(
        False, "Quantize embedding tables, and output layers that share them, too.", panel=PRECISION
    )
    keep_worst: int = option(0, "Keep the N layers with the largest quantization error in float.", panel=PRECISION)
    accuracy: bool = option(True, "Measure the quantization error of each layer.", panel=PRECISION)
    calibration: Any = option(
        None,
        "Inputs of the model by name, to which the weights of matrix products are fitted.",
        panel=PRECISION,
        kind=str,
        repr=False,
        metavar="FILE.npz",
    )
    method: str | None = option(None, "How to fit with --calibration: gptq (the default) or awq.", panel=PRECISION)
    act_order: bool = option(False, "gptq: fit the columns with the largest inputs first.", panel=PRECISION)
    activations: str = option(
        "auto",
        "float32; int8: onnxruntime's product rounds its inputs to 8 bits (faster); auto: int8 for onnxruntime-genai.",
        panel=PRECISION,
    )

    @staticmethod
    def of(asked: Any) -> Quantize | None:
        """The options that the keyword ``quantize`` asks for: one of these, or its ``kind`` alone. Raises UserError E001."""
        if isinstance(asked, str):
            return Quantize(asked)
        if asked is not None and not isinstance(asked, Quantize):
            raise UserError("E001", f"quantize is {asked!r:.60}", next="give fx2onnx.Quantize('int8')")
        return asked

    def __post_init__(self) -> None:
        for name, value, known in (
            ("quantize", self.kind, KINDS),
            ("format", self.format, FORMATS),
            ("activations", self.activations, ACTIVATIONS),
        ):
            if value not in known:
                raise unknown_word(name, value, known)
        block = self.block
        if block is not None and (type(block) is not int or (block and not LEAST_BLOCK <= block <= MOST_BLOCK)):
            raise UserError("E001", f"block {block!r} is not possible", next=f"0, or {LEAST_BLOCK} to {MOST_BLOCK}")
        if type(self.keep_worst) is not int or self.keep_worst < 0:
            raise UserError("E001", f"keep_worst {self.keep_worst!r} is no number of layers")
        if self.format == "matmulnbits":
            self._check_for_product()
        if self.activations == "int8":
            self._check_rounding()
        self._check_method()

    def _check_rounding(self) -> None:
        if self.kind in ("nf4", "float8") or self.format == "qdq" or (self.kind == "int8" and self.format == "auto"):
            raise UserError(
                "E001",
                "activations in 8 bits are for onnxruntime's MatMulNBits",
                why=f"{self.kind} weights in the format {self.format} are other products",
                next="int4 or uint4 weights, or int8 with --format matmulnbits",
            )

    def _check_method(self) -> None:
        if self.method is not None and self.method not in METHODS:
            raise unknown_word("method", self.method, METHODS)
        if self.method in ("gptq", "awq") and self.calibration is None:
            raise UserError("E001", f"{self.method} needs inputs of the model", next="--calibration FILE.npz")
        if self.method == "nearest" and self.calibration is not None:
            raise UserError("E001", "nearest needs no calibration data", next="leave out one of both")
        if self.act_order and self.fitting != "gptq":
            raise UserError("E001", "act_order is for gptq", next="leave it out, or give gptq its calibration data")
        useless = {
            "float8": "it multiplies columns, and numbers of a floating point are as fine at any size",
            "ternary": "it multiplies columns, and the larger ones would all become 1 or -1",
        }
        if self.fitting == "awq" and self.kind in useless:
            raise UserError(
                "E001",
                f"awq does nothing for {self.kind}",
                why=useless[self.kind],
                next="method gptq, or another kind",
            )

    @property
    def fitting(self) -> str | None:
        """``gptq`` or ``awq``; None where all is rounded to the nearest."""
        if self.calibration is None:
            return None
        return self.method or "gptq"

    def _check_for_product(self) -> None:
        if self.kind == "float8":
            raise UserError(
                "E001", "onnxruntime's MatMulNBits has no float8", next="leave out the format, or take int8"
            )
        if self.columns_of_block == 0 or self.columns_of_block & (self.columns_of_block - 1):
            raise UserError(
                "E001",
                f"MatMulNBits takes no block of {self.block}",
                next="a power of 2 from 16 on, such as --block 32",
            )

    @property
    def columns_of_block(self) -> int:
        """``block``, or what is usual; for MatMulNBits never whole rows."""
        if self.block is not None:
            return self.block
        return USUAL_BLOCK.get(self.kind, 32 if self.format == "matmulnbits" else 0)

    @property
    def least_opset(self) -> int:
        """The opset from which every weight has a form."""
        if self.columns_of_block or self.kind in USUAL_BLOCK or self.embeddings:
            return BLOCKS_FROM
        return FLOAT8_FROM if self.kind == "float8" else ROWS_FROM

    def is_excluded(self, name: str) -> bool:
        """Return whether a weight of that name stays as it is."""
        patterns = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        return any(fnmatchcase(name, pattern) for pattern in patterns)
