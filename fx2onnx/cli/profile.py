"""``fx2onnx profile SOURCE``."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import plain
from fx2onnx.base.options import OUTPUT
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from fx2onnx.cli.profile_measure import ProfileJob, Sweep
    from fx2onnx.cli.progress import Stages
    from fx2onnx.report.profile import Profile
    from fx2onnx.report.table import ProfileComparison
    from fx2onnx.sources import Source

_OTHERS = ("torch", "torchscript")


@reports_errors
def profile_command(
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    compare: Annotated[
        list[str] | None,
        options.flag("--compare", "torch, torchscript, or the JSON file of an earlier profile."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        options.flag(
            "--sweep", "Time other input sizes, ARG:AXIS=N,N: input_ids:1=32,64 or x:2+3=64,128. May be repeated."
        ),
    ] = None,
    depth: Annotated[
        str | None,
        options.flag("--depth", "Time other numbers of layers, N,N or KEY=N,N."),
    ] = None,
    repeat: Annotated[int, options.flag("--repeat", "Rounds after one to warm up; medians count.", min=1)] = 5,
    dynamic: options.Dynamic = None,
    write: Annotated[bool, options.flag("--write/--no-write", "Write the file, or do the graph work only.")] = True,
    folder: Annotated[
        Path | None, options.flag("--folder", "Where files are written while timing.", show_default="temporary")
    ] = None,
    verify: options.Verify = True,
    fail_if_slower: Annotated[
        str | None,
        options.flag("--fail-if-slower", "Exit code 1 if slower than --compare FILE by more than this: 20%."),
    ] = None,
    output: Annotated[Path | None, options.output("Write the profile as JSON to this file.", "FILE.json")] = None,
    html: options.Html = None,
    trace: options.Trace = None,
    speedscope: Annotated[
        Path | None,
        options.flag("--speedscope", "Write a speedscope file.", OUTPUT, metavar="FILE"),
    ] = None,
    attention: Annotated[
        str | None,
        options.flag("--attention", "Attention of a transformers model, as eager or sdpa, for all."),
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what an export costs.

    It shows phases, operators, lines of source code and memory, beside torch.onnx.export and over sizes if asked.
    """
    from fx2onnx.report.table import compare as compare_profiles
    from fx2onnx.report.table import parse_share

    others, earlier = _compared(compare or [])
    limit = None if fail_if_slower is None else parse_share(fail_if_slower)
    if limit is not None and not earlier:
        raise UserError("E001", "--fail-if-slower needs an earlier profile", next="--compare EARLIER.json")
    from fx2onnx.cli.progress import Stages
    from fx2onnx.sources.inputs import input_files

    check_apart((html, output, trace, speedscope), [*input_files(source), *earlier])

    with Stages(quiet=quiet or json_output) as stages, _working_folder(folder, write) as path:
        profile = _measured(
            stages,
            source,
            path,
            sample,
            attention,
            others,
            sweep or [],
            depth,
            repeat,
            dynamic,
            verify,
        )
    comparisons = [compare_profiles(before, profile, name) for name, before in earlier.items()]
    if html is not None:
        profile.to_html(html, comparisons)
    for file, form in ((trace, profile.to_chrome_trace), (speedscope, profile.to_speedscope)):
        if file is not None:
            form(file)
    if output is not None:
        profile.to_json(output)
    if json_output:
        print_json(profile.as_dict())
    elif not quiet:
        _show(profile, comparisons)
    _fail(comparisons, limit, profile)


def _compared(names: list[str]) -> tuple[list[str], dict[str, Profile]]:
    """Exporters to run and earlier profiles, read before anything expensive happens."""
    from fx2onnx.report.profile import Profile

    earlier = {}
    for name in names:
        if name not in _OTHERS:
            if not name.endswith(".json"):
                raise UserError("E001", f"--compare {name} is not known", next="torch, torchscript or FILE.json")
            check_readable(Path(name))
            earlier[name] = Profile.from_json(name)
    return list(dict.fromkeys(name for name in names if name in _OTHERS)), earlier


@contextlib.contextmanager
def _working_folder(folder: Path | None, write: bool) -> Iterator[Path | None]:
    """The path to export to, in a folder of its own that disappears."""
    if not write:
        yield None
        return
    if folder is not None and not folder.is_dir():
        raise UserError("E301", f"'{folder}' is not a folder")
    with tempfile.TemporaryDirectory(prefix="fx2onnx-profile-", dir=folder, ignore_cleanup_errors=True) as name:
        yield Path(name) / MODEL_FILE


def _measured(
    stages: Stages,
    spec: str,
    path: Path | None,
    sample: Mapping[str, Any],
    attention: str | None,
    others: list[str],
    sweeps: list[str],
    depth: str | None,
    repeat: int,
    dynamic: list[str] | None,
    verify: bool,
) -> Profile:
    from fx2onnx.cli import profile_measure as costs
    from fx2onnx.cli.feeds import dynamic_shapes_of, parse_dynamic
    from fx2onnx.report.profile_data import OURS

    sweeping = [costs.parse_sweep(text) for text in sweeps]
    keys, depths = ((), ()) if depth is None else costs.parse_depth(depth, spec)
    wanted = parse_dynamic(dynamic or ["none"])
    names = [OURS, *others]

    def job(spec: str) -> ProfileJob:
        model = options.resolve_source(spec, **sample)
        if attention is not None:
            _set_attention(model, attention)
        return costs.ProfileJob(model, path, dynamic_shapes_of(model, wanted))

    def resized(sweep: Sweep, size: int) -> ProfileJob:
        return costs.ProfileJob(costs.with_size(base.source, sweep, size), path, base.dynamic_shapes)

    with stages.stage(f"build {spec}"):
        base = job(spec)
        for sweep in sweeping:
            costs.with_size(base.source, sweep, sweep.values[0])  # a wrong name is refused before the time is spent
    with stages.stage("export " + " and ".join(names)):
        exports, result = costs.measure(names, base, repeat, stages.say)
    profile: Profile = result.profile  # our own, with the others' exports and the medians of all runs
    profile.source, profile.exports = spec, exports
    profile.report["origin"] = base.source.origin
    for sweep in sweeping:
        made = {size: resized(sweep, size) for size in sweep.values}
        with stages.stage(f"sweep {sweep.label}"):
            profile.sweeps.append(costs.measure_sweep(sweep.label, names, made, repeat, stages.say))
    if verify:
        with stages.stage("verify against eager PyTorch"):
            profile.verification = _verified(result, base.source)
    if depths:
        deep = {layers: functools.partial(job, costs.with_depth(spec, keys, layers)) for layers in depths}
        with stages.stage(f"depth {'+'.join(keys)}"):
            profile.depth = costs.measure_depth("+".join(keys), names, deep, repeat, stages.say)
    return profile


def _set_attention(model: Source, name: str) -> None:
    """Raises UserError E001 where the model has no such thing."""
    change = getattr(model.module, "set_attn_implementation", None)
    if change is None:
        raise UserError("E001", f"--attention has no meaning for {model.name}", why="it is no transformers model")
    try:
        change(name)
    except (ValueError, ImportError) as cause:
        raise UserError("E001", f"{model.name} has no attention '{name}'", why=str(cause).splitlines()[0]) from cause


def _verified(result: Any, source: Source) -> dict[str, Any]:
    from fx2onnx.cli.verify import check_model

    start = time.perf_counter()
    verdict = check_model(result, source)
    return {**verdict.as_dict(), "summary": verdict.describe(), "seconds": time.perf_counter() - start}


def _show(profile: Profile, comparisons: list[ProfileComparison]) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.table import comparison_view, view

    out = console()
    out.print(view(profile))
    if profile.verification is not None:
        style = "green" if profile.verification["ok"] else "red"
        line = f"verified in {profile.verification['seconds']:.1f} s: {profile.verification['summary']}"
        out.print(Text(line, style))
    for comparison in comparisons:
        out.print(comparison_view(comparison))


def _fail(comparisons: list[ProfileComparison], limit: float | None, profile: Profile) -> None:
    """Exit code 1 where an export became slower than allowed, or the file is wrong."""
    slower = [comparison for comparison in comparisons if limit is not None and comparison.is_slower(limit)]
    for comparison in slower:
        total = comparison.total
        typer.secho(
            f"slower than {plain(comparison.before)}: {total.before * 1e3:.1f} ms -> {total.after * 1e3:.1f} ms "
            f"({total.share:+.0%}, {limit:.0%} allowed)",
            fg="red",
            err=True,
        )
    if slower or (profile.verification is not None and not profile.verification["ok"]):
        raise typer.Exit(1)
