"""The engines on a file, each once for all inputs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import onnx
import torch

from fx2onnx.base.metadata import VERSION
from fx2onnx.judge.engines import ENGINES, PRECISE_OPTION, Array, Run, lacks_operator, open_onnxruntime
from fx2onnx.judge.memory import is_exhausted
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.verify.quantized import has_codes, in_float32, with_own_zero_points

PRECISE_NOTE = (
    f"onnxruntime was opened with {PRECISE_OPTION[0]}={PRECISE_OPTION[1]}: without, its int8 kernels add pairs of products in "
    "16 bits on CPUs without VNNI, and may overflow"
)
"""A note of the verdict."""

NOT_PRECISE_NOTE = f"onnxruntime does not run the model with {PRECISE_OPTION[0]}={PRECISE_OPTION[1]}: it ran without"
"""Likewise."""


def opened(
    path: str, proto: onnx.ModelProto, names: Sequence[str], verdict: Verdict, *, must_open: bool
) -> dict[str, Run]:
    """The engines that open the file; of the others a row, or a note where only a kernel is missing."""
    exact = in_float32(proto, verdict.note)
    runs: dict[str, Run] = {}
    for name in names:
        try:
            precise = _precise(path, proto, exact, verdict) if name == "onnxruntime" else None
            if precise is not None:
                runs[name] = precise
            elif exact is not None and name == "onnxruntime":
                runs[name] = open_onnxruntime(exact, os.path.dirname(path))
            else:
                runs[name] = ENGINES[name](path)
        except Exception as cause:  # each engine has classes of its own
            problem = f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0][:300]}"
            if is_exhausted(cause):
                verdict.ran_out(f"all inputs: {name} runs out of memory ({problem})")
            elif lacks_operator(cause) and not must_open:
                verdict.notes.append(f"{name} cannot run the model ({problem})")
            else:
                verdict.rows.append(Row.failed(name, "(all)", "no inputs", problem))
    return runs


def _precise(path: str, proto: onnx.ModelProto, exact: bytes | None, verdict: Verdict) -> Run | None:
    """onnxruntime with kernels that do not overflow, of a file with codes; None where it does not open the file so."""
    if not has_codes(proto):
        return None
    try:
        own = with_own_zero_points(proto) if exact is None else exact
        run = open_onnxruntime(
            path if own is None else own, "" if own is None else os.path.dirname(path), is_precise=True
        )
    except Exception:  # of any kind; what is wrong with the file shows without the option, too
        return None
    verdict.note(PRECISE_NOTE)
    without = cache(lambda: ENGINES["onnxruntime"](path))

    def precise(feeds: dict[str, Array]) -> list[Any]:
        try:
            return run(feeds)
        except Exception:  # of any kind; the same without the option says whose fault it is
            verdict.note(NOT_PRECISE_NOTE)
            return without()(feeds)

    return precise


def versions_of(runs: Mapping[str, Run]) -> dict[str, str]:
    """The versions of PyTorch, of this package and of the engines."""
    found = {"torch": torch.__version__, "runner": VERSION}
    for name in runs:
        with contextlib.suppress(PackageNotFoundError):
            found.setdefault(name, version(name))
    return found
