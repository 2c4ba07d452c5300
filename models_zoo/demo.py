"""``make demo``: export ResNet-50 and BERT-base, run both files in the runner and in onnxruntime, compare with PyTorch."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.base.escape import human_size
from fx2onnx.cli.progress import Stages, console

MODELS = ("resnet50", "bert_base_mlm")
# Float32 keeps about seven digits; fifty layers in another order of summation cost two to three of them.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """The results of one model. Errors are the largest absolute difference to eager, over all outputs."""

    model: str
    export_seconds: float
    nodes: int
    file_bytes: int
    largest_output: float
    runner_error: float
    runner_seconds: float
    ort_error: float
    ort_seconds: float

    @property
    def is_good(self) -> bool:
        return all(error <= _TOLERANCE * self.largest_output for error in (self.runner_error, self.ort_error))


def run_model(name: str, folder: Path, stages: Stages) -> Row:
    """Export the zoo model ``name`` into ``folder`` and compare both engines with the eager module."""
    import onnxruntime

    import fx2onnx
    from fx2onnx import runner
    from fx2onnx.sources import resolve

    path = folder / f"{name}.onnx"
    with stages.stage(f"{name}: build"):
        source = resolve(f"zoo:{name}")
    result = stages.call(
        f"{name}: export",
        lambda: fx2onnx.export(
            source.module,
            source.args,
            path,
            kwargs=source.kwargs,
            output_names=list(source.output_names),
            dynamic_shapes=source.dynamic_shapes,
        ),
    )
    report = result.report
    with stages.stage(f"{name}: eager PyTorch"):
        expected = eager_outputs(source)
    feeds = dict(zip(report.input_names, [value.numpy() for value in _inputs(source)], strict=True))
    with stages.stage(f"{name}: runner"):
        runner_error, runner_seconds = _compare(runner.InferenceSession(str(path)), feeds, expected)
    with stages.stage(f"{name}: onnxruntime"):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        ort_error, ort_seconds = _compare(session, feeds, expected)
    gc.collect()
    return Row(
        name,
        report.seconds,
        report.nodes_onnx,
        report.file_bytes,
        max(float(np.abs(value).max()) for value in expected),
        runner_error,
        runner_seconds,
        ort_error,
        ort_seconds,
    )


def eager_outputs(source: Any) -> list[np.ndarray[Any, Any]]:
    """The module's outputs on the example inputs, in order."""
    import torch

    with torch.no_grad():
        result = source.module(*source.args, **source.kwargs)
    values = [result] if isinstance(result, torch.Tensor) else result.values() if hasattr(result, "values") else result
    return [value.numpy() for value in values]


def _inputs(source: Any) -> list[Any]:
    return [*source.args, *source.kwargs.values()]


def _compare(session: Any, feeds: dict[str, Any], expected: list[np.ndarray[Any, Any]]) -> tuple[float, float]:
    """Largest absolute error over all outputs, and the seconds of one run (the second: the first warms up)."""
    session.run(None, feeds)
    start = time.perf_counter()
    outputs = session.run(None, feeds)
    seconds = time.perf_counter() - start
    for output, value in zip(outputs, expected, strict=True):
        if output.shape != value.shape or output.dtype != value.dtype:
            return float("inf"), seconds
    errors = [np.abs(output - value).max() for output, value in zip(outputs, expected, strict=True)]
    return float(np.max(errors)), seconds  # unlike max(), np.max keeps a NaN


def first_export() -> float:
    """Seconds of the first export of this process, of a small model: mostly imports, which later ones do not pay."""
    import fx2onnx
    from fx2onnx.sources import resolve

    source = resolve("zoo:mnist_cnn")
    return fx2onnx.export(source.module, source.args, dynamic_shapes=source.dynamic_shapes).report.seconds


def print_table(rows: list[Row], first_seconds: float, folder: Path) -> None:
    """One line per model."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    for heading in ("export", "nodes", "file", "largest output"):
        table.add_column(heading, justify="right")
    for engine in ("runner", "onnxruntime"):
        table.add_column(f"{engine}\nerror", justify="right")
        table.add_column("\nseconds", justify="right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.export_seconds:.2f} s",
            str(row.nodes),
            human_size(row.file_bytes),
            f"{row.largest_output:.1f}",
            f"{row.runner_error:.1e}",
            f"{row.runner_seconds:.3f}",
            f"{row.ort_error:.1e}",
            f"{row.ort_seconds:.3f}",
        )
    out = console()
    out.print(table)
    out.print(
        f"Export: from the module to the file on disk, after a first export of {first_seconds:.2f} s that imports what is "
        f"needed.\nError: largest absolute difference to eager PyTorch. Files: {folder}{os.sep}",
        soft_wrap=True,
    )


def main() -> int:
    """Run the demo. 0 where every output agrees with eager PyTorch, 1 otherwise, 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m models_zoo.demo", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"zoo models (default: {' '.join(MODELS)})")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the files (default: %(default)s)")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with Stages() as stages:
            first_seconds = stages.call("first export in this process: mnist_cnn", first_export)
            rows = [run_model(name, options.out, stages) for name in options.models or MODELS]
    except Fx2OnnxError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    print_table(rows, first_seconds, options.out)
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
