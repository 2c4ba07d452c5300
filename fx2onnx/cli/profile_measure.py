"""Runs exporters on one model, warm and in turn, and keeps what they cost."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import recording
from fx2onnx.base.memory import MemoryReader
from fx2onnx.cli.profile_probes import DYNAMO, TORCHSCRIPT, Probe, probed
from fx2onnx.report.profile_data import OURS, Event, Export, Point, Series, events_of, tree_of
from fx2onnx.sources import Source

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source


@dataclass(frozen=True)
class ProfileJob:
    """A model to export: where to (None: nothing is written) and what is dynamic."""

    source: Source
    path: Path | None
    dynamic_shapes: dict[str, dict[int, Any]] | None = None


@dataclass
class Run:
    """One export: seconds of the whole call, and, where details were asked for, what happened."""

    seconds: float
    events: Event | None = None
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    result: ExportResult | None = None


Exporter = Callable[[ProfileJob, bool], Run]


def ours(job: ProfileJob, detailed: bool) -> Run:
    """``fx2onnx.export``."""
    from fx2onnx import api

    start = time.perf_counter()
    result = api.export(
        job.source.module,
        job.source.args,
        job.path,
        kwargs=job.source.kwargs or None,
        output_names=list(job.source.output_names) or None,
        dynamic_shapes=job.dynamic_shapes,
        profile=detailed,
    )
    seconds = time.perf_counter() - start
    profile = result.profile
    if profile is None:
        return Run(seconds, result=result)
    return Run(seconds, profile.ours.events, profile.ours.memory, result)


def dynamo(job: ProfileJob, detailed: bool) -> Run:
    """``torch.onnx.export(dynamo=True)``."""
    return _torch(job, detailed, "torch", DYNAMO, {"dynamo": True, "dynamic_shapes": _names(job)})


def _names(job: ProfileJob) -> Any:
    """The names of the dynamic sizes, as torch's exporters take them."""
    if not isinstance(job.dynamic_shapes, dict):
        return job.dynamic_shapes
    return {name: {axis: str(size) for axis, size in axes.items()} for name, axes in job.dynamic_shapes.items()}


def torchscript(job: ProfileJob, detailed: bool) -> Run:
    """``torch.onnx.export(dynamo=False)``. It has no form without a file, so a buffer in memory takes its place."""
    keywords: dict[str, Any] = {"dynamo": False}
    if job.dynamic_shapes is not None:
        keywords |= {"dynamic_axes": _names(job), "input_names": list(job.dynamic_shapes)}
    return _torch(job, detailed, "torchscript", TORCHSCRIPT, keywords)


EXPORTERS: dict[str, Exporter] = {OURS: ours, "torch": dynamo, "torchscript": torchscript}
"""The exporters, by the name that ``--compare`` takes."""


def _torch(job: ProfileJob, detailed: bool, name: str, probes: tuple[Probe, ...], keywords: dict[str, Any]) -> Run:
    import torch

    target: Any = str(job.path) if job.path is not None else (None if keywords["dynamo"] else io.BytesIO())
    memory = MemoryReader() if detailed else None

    def export() -> None:
        torch.onnx.export(job.source.module, job.source.args, target, kwargs=job.source.kwargs or None, **keywords)

    start = time.perf_counter()
    if not detailed:
        export()
        return Run(time.perf_counter() - start)
    with probed(probes):
        start = time.perf_counter()
        with recording(name, detailed=True, memory=memory) as recorder:
            export()
        seconds = time.perf_counter() - start
    return Run(seconds, *events_of(tree_of(recorder), memory))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No output of the exporters, no garbage of the one before."""
    gc.collect()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


def _attempt(name: str, job: ProfileJob, detailed: bool) -> Run | str:
    """A run, or why there is none. Raises what our own export raises."""
    try:
        with _undisturbed():
            return EXPORTERS[name](job, detailed)
    except Exception as error:  # another exporter's failure is a finding, not a fault
        if name == OURS:
            raise
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
        return f"{type(error).__name__}: {text[0][:200] if text else ''}"


def measure(names: Sequence[str], job: ProfileJob, repeat: int, say: Callable[[str], None]) -> tuple[list[Export], Any]:
    """Each exporter once to warm up, then ``repeat`` rounds in turn. Returns the exports and our last result.

    Raises: Fx2OnnxError where our own export fails; the failure of another exporter stands in its ``error``.
    """
    exports = [Export(name) for name in names]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    result: Any = None
    for round_number in range(repeat + 1):
        for export in exports:
            if export.error:
                continue
            say(f"{export.exporter}, " + (f"round {round_number} of {repeat}" if round_number else "warming up"))
            found = _attempt(export.exporter, job, round_number > 0)
            if isinstance(found, str):
                export.error = found
            elif round_number:
                runs[export.exporter].append(found)
                result = found.result or result
                export.file_bytes = (
                    0
                    if job.path is None
                    else sum(file.stat().st_size for file in job.path.parent.iterdir() if file.is_file())
                )
            export.nodes = export.nodes or (0 if isinstance(found, str) else _nodes(found, job.path))
            _remove(job.path)
    for export in exports:
        _settle(export, runs[export.exporter])
    return exports, result


def _settle(export: Export, runs: list[Run]) -> None:
    """Seconds of all runs; events and memory of the one nearest the median."""
    if not runs:
        return
    export.seconds = [run.seconds for run in runs]
    middle = statistics.median(export.seconds)
    nearest = min(runs, key=lambda run: abs(run.seconds - middle))
    export.events, export.memory = nearest.events, nearest.memory


def measure_sweep(
    label: str, names: Sequence[str], jobs: Mapping[int, ProfileJob], repeat: int, say: Callable[[str], None]
) -> Series:
    """Every size with every exporter, all sizes in each round, so that a slow minute of the machine falls on all of them.
    The first round is not counted. Sizes that an exporter refuses stay in, with its words.
    """
    points = {(size, name): Point(size, name) for size in jobs for name in names}
    for round_number in range(repeat + 1):
        for (size, name), point in points.items():
            say(f"{label} {size}: {name}, round {round_number} of {repeat}")
            _take(point, jobs[size], round_number > 0)
    return Series(label, list(points.values()))


def measure_depth(
    label: str,
    names: Sequence[str],
    make: Mapping[int, Callable[[], ProfileJob]],
    repeat: int,
    say: Callable[[str], None],
) -> Series:
    """A series as of ``measure_sweep``, one model after the other, so that only one is in memory."""
    series = Series(label)
    for layers, make_job in make.items():
        job = make_job()
        result = measure_sweep(label, names, {layers: job}, repeat, say)
        series.points += result.points
    return series


def _take(point: Point, job: ProfileJob, counts: bool) -> None:
    """One more run of a point, unless it failed already."""
    if point.error:
        return
    try:
        result = _attempt(point.exporter, job, False)
    except Fx2OnnxError as error:
        result = f"{error.code}: {error.what}"
    _remove(job.path)
    if isinstance(result, str):
        point.error = result
    elif counts:
        point.seconds.append(result.seconds)


def _nodes(run: Run, path: Path | None) -> int:
    if run.result is not None:
        return int(run.result.report.nodes_onnx)
    if path is None or not path.exists():
        return 0
    import onnx

    return len(onnx.load(str(path), load_external_data=False).graph.node)


def _remove(path: Path | None) -> None:
    """The folder is this command's own."""
    for file in path.parent.iterdir() if path is not None else ():
        os.unlink(file)


_SWEEP = re.compile(r"\s*([A-Za-z_]\w*)\s*:\s*(\d+(?:\+\d+)*)\s*=\s*([\d,\s]+)")
_DEPTH = re.compile(r"\s*(?:([A-Za-z_][\w+]*)\s*=)?\s*([\d,\s]+)")
_LAYERS_OF = {"hf": "num_hidden_layers", "timm": "depth"}
"""The keyword that says how many layers a source of this kind has, where one says it for all."""


@dataclass(frozen=True)
class Sweep:
    """Sizes of one axis of one argument, or of several axes that have the same size each time."""

    argument: str
    axes: tuple[int, ...]
    values: tuple[int, ...]

    @property
    def label(self) -> str:
        numbers = " and ".join(map(str, self.axes))
        return f"{self.argument}, {'axis' if len(self.axes) == 1 else 'axes'} {numbers}"


def parse_sweep(text: str) -> Sweep:
    """``input_ids:1=32,64`` or ``x:2+3=64,128``. Raises UserError E001."""
    match = _SWEEP.fullmatch(text)
    if match is None:
        raise UserError("E001", f"cannot read --sweep '{text}'", next="write ARG:AXIS=N,N, as input_ids:1=32,64,128")
    axes = tuple(dict.fromkeys(int(axis) for axis in match[2].split("+")))
    return Sweep(match[1], axes, _numbers(match[3], "--sweep"))


def parse_depth(text: str, spec: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """``12,24`` or ``KEY=12,24`` or ``KEY+KEY=12,24``: the keywords of the source and their values. Raises UserError E001."""
    match = _DEPTH.fullmatch(text)
    if match is None:
        raise UserError("E001", f"cannot read --depth '{text}'", next="write N,N or KEY=N,N, as num_layers=12,24")
    key = match[1] or _LAYERS_OF.get(spec.partition(":")[0])
    if key is None:
        raise UserError(
            "E001",
            f"--depth does not know which keyword of {spec} is the number of layers",
            next=f"name it: --depth KEY={text}",
        )
    return tuple(key.split("+")), _numbers(match[2], "--depth")


def _numbers(text: str, option: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(",") if part.strip())
    if not values or min(values) < 1:
        raise UserError("E001", f"{option} needs sizes of at least 1, not '{text.strip()}'")
    return values


def with_depth(spec: str, keys: Sequence[str], value: int) -> str:
    """The spec with every key set to ``value``."""
    body, _, query = spec.partition("?")
    kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in keys]
    return f"{body}?{'&'.join([*kept, *(f'{key}={value}' for key in keys)])}"


def with_size(source: Source, sweep: Sweep, value: int) -> Source:
    """The source with its sample inputs at another size: the argument's axes, and every axis of any argument that has the
    dim name of one of them. Numbers are repeated or cut, so that ids stay ids.

    Raises:   UserError E001 for an argument or an axis that the example call does not have.
    """
    import torch

    from fx2onnx.cli.feeds import arguments_of

    samples = arguments_of(source)
    named = source.dynamic_shapes or {}
    tensor = samples.get(sweep.argument)
    if not isinstance(tensor, torch.Tensor):
        raise UserError("E001", f"--sweep names '{sweep.argument}', which is no tensor", next=f"one of {list(samples)}")
    if max(sweep.axes) >= tensor.dim():
        what = f"{sweep.argument} has no axis {max(sweep.axes)}"
        raise UserError("E001", what, why=f"its shape is {list(tensor.shape)}")
    own = named.get(sweep.argument, {})
    dims = [own[axis] for axis in sweep.axes if own.get(axis) is not None]
    axes = {name: [axis for axis, dim in dim_of.items() if dim in dims] for name, dim_of in named.items()}
    axes[sweep.argument] = sorted({*axes.get(sweep.argument, []), *sweep.axes})
    resized = {name: _resized(samples[name], places, value) for name, places in axes.items() if name in samples}
    positional = list(samples)[: len(source.args)]
    return replace(
        source,
        args=tuple(resized.get(name, arg) for name, arg in zip(positional, source.args, strict=True)),
        kwargs={name: resized.get(name, arg) for name, arg in source.kwargs.items()},
    )


def _resized(tensor: Any, axes: Sequence[int], value: int) -> Any:
    import torch

    for axis in axes:
        index = torch.arange(value, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, index)
    return tensor
