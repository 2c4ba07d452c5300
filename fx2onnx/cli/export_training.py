"""``fx2onnx export-training SOURCE --loss cross_entropy --optimizer adamw -o FOLDER``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import UserError, unknown_word
from fx2onnx.base.escape import human_size
from fx2onnx.cli import options
from fx2onnx.cli.export import Task, default_output, with_task
from fx2onnx.cli.files import check_apart, write_report_of_folder
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_warnings, reports_errors
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    import torch

    from fx2onnx.exporting.result import TrainingFolder
    from fx2onnx.sources import Source

OPTIMIZERS = {
    "sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adafactor": "Adafactor",
}  # fmt: skip
"""Words of ``--optimizer`` and classes of ``torch.optim``."""
LOSSES = ("cross_entropy", "mse", "binary_cross_entropy_with_logits")
TARGET = "target"
PANEL = "Training"


@reports_errors
def export_training_command(
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("opset_version",))],
    loss: Annotated[str, options.flag("--loss", f"{', '.join(LOSSES[:-1])} or {LOSSES[-1]}.", PANEL)] = LOSSES[0],
    optimizer: Annotated[
        str | None,
        options.flag("--optimizer", f"{', '.join(OPTIMIZERS)}. Default: gradients only.", PANEL),
    ] = None,
    learning_rate: Annotated[
        float | None, options.flag("--learning-rate", "First rate of the optimizer.", PANEL)
    ] = None,
    frozen: Annotated[
        list[str] | None,
        options.flag(
            "--frozen",
            "Parameter that stays as it is, repeatable: a name, or the beginning of names.",
            PANEL,
            metavar="NAME",
        ),
    ] = None,
    task: Task = None,
    dynamic: options.Dynamic = None,
    output: Annotated[Path | None, options.output("The folder to write.", "FOLDER")] = None,
    report: options.Report = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
    verify: options.Verify = True,
    strict: options.Strict = False,
) -> None:
    """Export training steps as a folder of ONNX files, for fx2onnx train."""
    place, opset = output or default_output(source, sample["weights"]), exported["opset_version"]
    shapes = tuple(dynamic or ["default"])
    job = TrainingJob(
        with_task(source, task),
        place,
        loss,
        optimizer,
        learning_rate,
        tuple(frozen or ()),
        shapes,
        opset,
        sample,
        verify,
    )
    _export_training_folder(job, report=report, json_output=json_output, quiet=quiet)


@dataclass(frozen=True)
class TrainingJob:
    """The job that ``fx2onnx export-training`` was asked for."""

    source: str
    output: Path
    loss: str
    optimizer: str | None
    learning_rate: float | None
    frozen: Sequence[str]
    dynamic: Sequence[str]
    opset: int | None
    source_options: dict[str, Any]
    verify: bool = True


def _export_training_folder(job: TrainingJob, *, report: Path | None, json_output: bool, quiet: bool) -> None:
    """Export into the folder and show what is in it. Raises UserError."""
    from fx2onnx.cli.progress import Stages
    from fx2onnx.sources.inputs import input_files

    if job.loss not in LOSSES:
        raise unknown_word("--loss", job.loss, LOSSES)
    if job.optimizer is not None and job.optimizer not in OPTIMIZERS:
        raise unknown_word("--optimizer", job.optimizer, OPTIMIZERS)
    _check_rate(job)
    check_apart([report], input_files(job.source, job.source_options.get("weights")))
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {job.source}"):
            model = options.resolve_source(job.source, **job.source_options)
        done = stages.call("export", lambda: _exported(job, model))
    summary = _summary(job, done)
    if report is not None:
        write_report_of_folder(report, job.output, summary)
    if json_output:
        print_json(summary)
    elif not quiet:
        _show(done)
    else:
        print_warnings(f"{name}: {text}" for name, each in done.results.items() for text in each.report.warnings)


def _check_rate(job: TrainingJob) -> None:
    rate = job.learning_rate
    if rate is None:
        return
    if job.optimizer is None:
        raise UserError("E001", "--learning-rate is the optimizer's", next="add --optimizer sgd, adamw, ...")
    if not 0 <= rate < math.inf:
        raise UserError("E001", f"--learning-rate {rate} is no rate", next="a number from 0 on, such as 1e-3")


def _exported(job: TrainingJob, model: Source) -> TrainingFolder:
    import torch

    from fx2onnx.api import export_training
    from fx2onnx.cli.feeds import arguments_of, dynamic_shapes_of, parse_dynamic

    modes = {part: part.training for part in model.module.modules()} | {**model.modes}
    loss, target = _loss_of(job.loss, model)
    for part, is_training in modes.items():
        part.training = is_training
    wanted, samples = parse_dynamic(list(job.dynamic)), arguments_of(model)
    own = wanted.pop(TARGET, None) if isinstance(wanted, dict) and TARGET not in samples else None
    shapes = dict(dynamic_shapes_of(model, wanted) or {})
    shapes[TARGET] = _shared(target, shapes, samples) if own is None else own
    if not any(value.requires_grad for value in model.module.parameters()):
        model.module.requires_grad_()
    optimizer = None
    if job.optimizer is not None:
        rate = {} if job.learning_rate is None else {"lr": job.learning_rate}
        parameters = [value for value in model.module.parameters() if value.requires_grad]
        optimizer = getattr(torch.optim, OPTIMIZERS[job.optimizer])(parameters, **rate)
    metrics = {"accuracy": _accuracy} if job.loss == "cross_entropy" else {}
    return export_training(
        model.module,
        model.args,
        job.output,
        loss=loss,
        targets={TARGET: target},
        optimizer=optimizer,
        kwargs=model.kwargs or None,
        dynamic_shapes=shapes,
        opset_version=job.opset,
        metrics=metrics,
        frozen=job.frozen,
        verify=job.verify,
    )


def _shared(
    target: torch.Tensor, shapes: Mapping[str, Mapping[int, Any]], samples: Mapping[str, Any]
) -> dict[int, str]:
    """The dynamic axes that the target shares with inputs: the same axis, of the same size in the example."""
    found: dict[int, str] = {}
    for name, axes in shapes.items():
        sizes = getattr(samples.get(name), "shape", ())
        for axis, size in axes.items():
            if axis < min(len(sizes), target.dim()) and sizes[axis] == target.shape[axis]:
                found.setdefault(axis, str(size))
    return found


def _scores(outputs: Any) -> torch.Tensor:
    """The tensor that a loss is computed from: the tensor, ``logits``, or the first tensor that forward returns."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs
    found = getattr(outputs, "logits", None)
    if found is None:
        parts = (
            outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, tuple | list) else ()
        )
        found = next((part for part in parts if isinstance(part, torch.Tensor)), None)
    if found is None:
        raise UserError("E001", "forward returns no tensor that a loss could be taken of")
    return found


def _accuracy(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    return (_scores(outputs).argmax(-1) == target).float().mean()


def _loss_of(name: str, model: Source) -> tuple[Callable[[Any, torch.Tensor], torch.Tensor], torch.Tensor]:
    """The loss, and a sample of its target."""
    import torch
    from torch.nn import functional

    with torch.no_grad():
        scores = _scores(model.module.eval()(*model.args, **(model.kwargs or {})))
    is_class = name == "cross_entropy"
    sizes = list(scores.shape[:-1]) if is_class else list(scores.shape)
    if is_class:
        target = torch.zeros(sizes, dtype=torch.int64)
        return lambda outputs, target: functional.cross_entropy(
            _scores(outputs).flatten(0, -2), target.flatten()
        ), target  # fmt: skip
    function = functional.mse_loss if name == "mse" else functional.binary_cross_entropy_with_logits
    return lambda outputs, target: function(_scores(outputs), target), torch.zeros(sizes, dtype=scores.dtype)


def _summary(job: TrainingJob, done: TrainingFolder) -> dict[str, Any]:
    return {
        "ok": True,
        "source": job.source,
        "folder": str(done.path),
        "files": sorted(path.name for path in done.path.iterdir()),
        "verdicts": {name: verdict.summary() for name, verdict in done.verdicts.items()},
        "reports": {name: result.report.as_dict() for name, result in done.results.items()},
    }


def _show(done: TrainingFolder) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(2)
    table.add_row(Text("folder", style="bold"), Text(str(done.path)))
    for path in sorted(done.path.iterdir()):
        result = done.results.get(path.name)
        facts = "" if result is None else f"{result.report.nodes_onnx} nodes, {result.report.seconds:.2f} s"
        table.add_row(Text(path.name), Text(f"{human_size(path.stat().st_size):>9}   {facts}"))
    for name, verdict in done.verdicts.items():
        table.add_row(Text(f"verified {name}"), Text(verdict.describe()))
    trained = len(done.manifest.parameters)
    table.add_row(Text("trained", style="bold"), Text(f"{trained} parameters"))
    console().print(table)
