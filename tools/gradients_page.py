"""docs/measured/gradients.md: PyTorch's operator database, each row differentiated in an exported graph, beside autograd in float64.

python -m tools.gradients_page docs/measured/gradients.md
"""

from __future__ import annotations

import argparse
import datetime
import signal
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.exporting import pipeline
from fx2onnx.exporting.options import ExportOptions
from tests.ops.database import name_of, op_infos
from tests.support import run_engines

SAMPLES, MOST_SAMPLES, SECONDS = 2, 4, 30
"""The first of a row's samples and the last of its first four; no row may take longer."""
RANDOM = frozenset(
    {
        *("bernoulli", "normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
        *("nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"),
    }
)
"""Rows whose samples draw at random: only that they export is asked."""
OPTIONS = ExportOptions(capture=CaptureOptions(gradients=True))
STATUSES = ("right", "random", "refused", "wrong", "fault", "not compared")


@dataclass(frozen=True)
class Row:
    """``status`` is one of STATUSES."""

    name: str
    status: str
    note: str = ""


class Gradients(torch.nn.Module):
    """The gradients of a weighted sum of all outputs, for the inputs that require one."""

    def __init__(self, function: Any, sample: Any) -> None:
        super().__init__()
        self.function = function
        flat, self.structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        self.places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.requires_grad]
        self.flat = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in flat]

    def inputs(self) -> list[torch.Tensor]:
        return [self.flat[place] for place in self.places]

    def total(self, tensors: Sequence[torch.Tensor], *, is_wide: bool = False) -> torch.Tensor:
        flat = list(self.flat)
        if is_wide:
            flat = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in flat]
        for place, tensor in zip(self.places, tensors, strict=True):
            flat[place] = tensor
        args, kwargs = pytree.tree_unflatten(flat, self.structure)
        found = [x for x in pytree.tree_leaves(self.function(*args, **kwargs)) if isinstance(x, torch.Tensor)]
        real = [torch.view_as_real(x) if x.is_complex() else x for x in found if x.requires_grad]
        parts = [(x * torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape).cos()).sum() for x in real]
        return torch.stack([part.to(parts[0].dtype) for part in parts]).sum()

    def gradients(self, tensors: Sequence[torch.Tensor], *, is_wide: bool = False) -> list[torch.Tensor]:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            own = [tensor.detach().requires_grad_() for tensor in tensors]
            found = torch.autograd.grad(self.total(own, is_wide=is_wide), own, allow_unused=True)
        return [gradient for gradient in found if gradient is not None]

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return self.gradients(tensors)


class _TooLong(Exception):
    pass


def _stop(*_: object) -> None:
    raise _TooLong


def difference(module: Gradients) -> str:
    """The difference from autograd in float64 beyond what float32 itself costs, or an empty text. Raises UserError."""
    inputs = module.inputs()
    exact = module.gradients([tensor.double() for tensor in inputs], is_wide=True)
    single = module.gradients(inputs)
    proto = pipeline.run(module, tuple(inputs), None, None, OPTIONS).model_proto
    for engine, outputs in run_engines(proto, inputs).items():
        for got, want, own in zip(outputs, exact, single, strict=True):
            if got.shape != tuple(want.shape):
                return f"{engine} gives {list(got.shape)} for {list(want.shape)}"
            judge, plain = np.nan_to_num(want.resolve_neg().numpy(force=True)), np.nan_to_num(own.numpy(force=True))
            scale = max(1.0, float(np.abs(judge).max(initial=0)))
            allowed = max(1e-4 * scale, 10 * float(np.abs(plain - judge).max(initial=0)))
            error = float(np.abs(np.nan_to_num(got) - judge).max(initial=0))
            if error > allowed:
                return f"{engine} is off by {error:.3g}"
    return ""


def row_of(info: Any) -> Row:
    name = name_of(info)
    samples = []
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=True):
        samples.append(sample)
        if len(samples) == MOST_SAMPLES:
            break
    is_random = name in RANDOM
    for place in sorted({0, len(samples) - 1}):
        torch.manual_seed(0)
        module = Gradients(info.op, samples[place])
        try:
            module.gradients([tensor.double() for tensor in module.inputs()], is_wide=True)
        except _TooLong:
            raise
        except Exception as error:  # autograd itself refuses the example in float64
            return Row(name, "not compared", type(error).__name__)
        try:
            why = difference(module)
        except Fx2OnnxError as error:
            return Row(name, "refused", f"{error.code} {error.what}")
        if why and not is_random:
            return Row(name, "wrong", why)
    return Row(name, "random" if is_random else "right")


def swept(patterns: Sequence[str]) -> Iterator[Row]:
    signal.signal(signal.SIGALRM, _stop)
    for info in op_infos(patterns):
        if not info.supports_autograd or torch.float32 not in info.dtypes:
            continue
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield row_of(info)
        except _TooLong:
            yield Row(name_of(info), "fault", f"took longer than {SECONDS} s")
        except Exception as error:  # whatever an operator raises is its row
            yield Row(name_of(info), "fault", f"{type(error).__name__}: {error}".splitlines()[0][:100])
        finally:
            signal.alarm(0)


def page(rows: Sequence[Row]) -> str:
    counts = Counter(row.status for row in rows)
    judged = len(rows) - counts["not compared"]
    good = counts["right"] + counts["random"]
    lines = [
        "# Gradients of operators",
        "",
        "Written by `python -m tools.gradients_page docs/measured/gradients.md` (a minute): every row of PyTorch's operator "
        f"database that autograd differentiates in float32, {SAMPLES} samples each. A row is right where the gradients of all "
        "inputs, exported in one graph, are those of autograd in float64 in onnxruntime and in the runner, up to ten times "
        "what float32 itself is off in eager PyTorch.",
        "",
        f"{datetime.date.today()}, torch {torch.__version__.partition('+')[0]}, onnxruntime {onnxruntime.__version__}: "
        f"{good} of {judged} rows ({100 * good / max(judged, 1):.1f} %).",
        "",
        "| status | rows |",
        "|---|---|",
        *(f"| {status} | {counts[status]} |" for status in STATUSES if counts[status]),
        "",
        "`random`: draws at random, so only the export counts. `not compared`: autograd refuses the call itself.",
        "",
        "| row | status | |",
        "|---|---|---|",
        *(f"| {row.name} | {row.status} | {row.note.replace('|', '/')} |" for row in rows if row.status != "right"),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("patterns", nargs="*", default=["*"])
    arguments = parser.parse_args()
    rows = list(swept(arguments.patterns))
    arguments.file.write_text(page(rows), encoding="utf-8")
    print(Counter(row.status for row in rows))


if __name__ == "__main__":
    main()
