"""``fx2onnx run MODEL``."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.metadata import CONDITIONS
from fx2onnx.base.options import CHECKS, INPUTS, OUTPUT
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable
from fx2onnx.cli.outcome import print_json, print_text, reports_errors
from fx2onnx.files.staging import replacing, write_text
from fx2onnx.judge.constants import RTOL

if TYPE_CHECKING:
    from fx2onnx.cli.run_data import DataSet

_RUNS_UNTIL_PLAN = 2
"""The runner records its first run and has a plan in the second."""


@reports_errors
def run_command(
    model: Annotated[
        Path,
        options.argument("MODEL", "The ONNX file to run, or a folder with a test case."),
    ],
    input: options.Inputs = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    test_data: Annotated[
        Path | None,
        options.flag(
            "--test-data", "Folder with input_0.pb, output_0.pb, or with test_data_set_*.", INPUTS, metavar="FOLDER"
        ),
    ] = None,
    output: Annotated[Path | None, options.output("Write all outputs to this file.", "FILE.npz")] = None,
    assert_outputs: Annotated[
        Path | None,
        options.flag("--assert-outputs", "Compare the outputs with those of this file.", CHECKS, metavar="FILE.npz"),
    ] = None,
    rtol: Annotated[float, options.flag("--rtol", "Relative tolerance of comparisons.", CHECKS, min=0)] = RTOL,
    atol: Annotated[
        float | None,
        options.flag(
            "--atol", "Absolute tolerance of comparisons. Default: by the largest value of each output.", CHECKS, min=0
        ),
    ] = None,
    dump_graph: Annotated[bool, options.flag("--dump-graph", "Show the graph, one line a node.", OUTPUT)] = False,
    dump_dag: Annotated[
        Path | None,
        options.flag("--dump-dag", "Draw the steps of the runner.", OUTPUT, metavar="FILE.svg"),
    ] = None,
    dump_ir: Annotated[
        bool, options.flag("--dump-ir", "Show the runner's program: slots, steps, arena.", OUTPUT)
    ] = False,
    profile: Annotated[bool, options.flag("--profile", "Show the time of each operator.", OUTPUT)] = False,
    trace: options.Trace = None,
    engine: options.OneEngine = "runner",
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run an ONNX file and show its outputs."""
    from fx2onnx.cli.run_data import data_folders, model_in

    file = model_in(model)
    check_readable(file)
    if engine == "onnxruntime" and (dump_graph or dump_ir or dump_dag is not None):
        raise UserError("E001", "--dump-graph, --dump-dag and --dump-ir show the runner", next="leave out --engine")
    folders = data_folders(test_data or model) if test_data is not None or os.path.isdir(model) else []
    if test_data is not None and not folders:
        raise UserError("E302", f"no test data in '{test_data}'", why="it has no input_0.pb and no test_data_set_*")
    if folders and (input or dim):
        raise UserError("E001", "the inputs come from the test data; --input and --dim have no place beside it")
    if len(folders) > 1 and (output is not None or assert_outputs is not None):
        raise UserError("E001", "one .npz file cannot hold several data sets", next=f"--test-data '{folders[0]}'")
    outputs_to = (output, dump_dag, trace)
    if any(outputs_to):
        check_apart(outputs_to, _inputs(file, folders, input or [], assert_outputs))

    from fx2onnx.cli import run_data
    from fx2onnx.cli.progress import Stages
    from fx2onnx.judge.arrays import read_npz
    from fx2onnx.runner import dump

    with Stages(quiet=quiet or json_output) as stages, _trace_file(profile or trace is not None) as prefix:
        with stages.stage(f"load {file.name}"):
            session = _session(file, engine or "runner", prefix)
        shown: dict[str, Any] = {"file": str(file), "model": session.get_modelmeta().graph_name, "engine": engine}
        metadata = session.get_modelmeta().custom_metadata_map
        _dump_before(session, shown, dump_graph, dump_dag, json_output)
        runs = _feeds(session, folders, input, dim, seed)
        names = [item.name for item in session.get_outputs()]
        sets: list[dict[str, Any]] = []
        for data in runs:
            title = f"run in {engine}" + (f" {data.folder.name}" if folders else "")
            repeats = _RUNS_UNTIL_PLAN if dump_ir or prefix else 1
            try:
                values = stages.call(title, lambda data=data, repeats=repeats: _run(session, data.feeds, repeats))  # type: ignore[misc]
            except Fx2OnnxError:
                if dump_ir and not json_output:
                    print_text(dump.dump_ir(session))
                raise
            outputs = dict(zip(names, values, strict=True))
            described = [run_data.describe(name, value) for name, value in outputs.items()]
            sets.append({"inputs": run_data.describe_inputs(data.feeds), "outputs": described})
            if not (json_output or quiet):
                run_data.print_results(f"{shown['model']}  ({file.name})", data, described)
            if folders and data.wanted:
                run_data.assert_outputs(outputs, data.wanted, rtol, atol, str(data.folder), metadata)
                if not (json_output or quiet):
                    print_text(f"equal to {data.folder} ({run_data.tolerances(rtol, atol)})\n")
        rows = _finish_profile(session, prefix, trace) if prefix else []
    if output is not None:
        _save(output, outputs)
    if assert_outputs is not None:
        run_data.assert_outputs(outputs, read_npz(assert_outputs), rtol, atol, str(assert_outputs), metadata)
    _show_rest(session, shown, sets, rows if profile else [], dump_ir, json_output)


def _inputs(file: Path, folders: list[Path], feeds: list[str], wanted: Path | None) -> list[Path]:
    """The files that the command reads: the model's, arrays, test data."""
    from fx2onnx.cli.feeds import parse_pairs
    from fx2onnx.irx.model_files import external_files

    try:
        weights = external_files(file)
    except Exception:  # no ONNX file, or a damaged one: the session says what is wrong with it
        weights = []
    arrays = [value for value in parse_pairs(feeds, "--input").values() if value != "random"]
    data = [path for folder in folders for path in folder.iterdir()]
    return [file, *map(Path, weights), *map(Path, arrays), *data, *filter(None, [wanted])]


def _feeds(
    session: Any, folders: list[Path], input: list[str] | None, dim: list[str] | None, seed: int
) -> list[DataSet]:
    """The inputs to run on: each folder of test data, or one set of given and random inputs."""
    from fx2onnx.cli.feeds import make_feeds, parse_dims, parse_pairs
    from fx2onnx.cli.run_data import DataSet, read_data_set

    if folders:
        inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
        return [read_data_set(folder, inputs, session.get_outputs()) for folder in folders]
    given, dims = parse_pairs(input or [], "--input"), parse_dims(dim or [])
    conditions = session.get_modelmeta().custom_metadata_map.get(CONDITIONS, "")
    feeds = make_feeds(session.get_inputs(), given, dims, seed, conditions)
    read = {name for name, value in given.items() if value != "random"}
    return [DataSet(Path(), feeds, {}, random=feeds.keys() - read)]


def _dump_before(session: Any, shown: dict[str, Any], graph: bool, dag: Path | None, as_json: bool) -> None:
    """The dumps that need no run, so that a model that fails is shown too."""
    if not graph and dag is None:
        return
    from fx2onnx.runner import dump

    if graph:
        shown["graph"] = dump.dump_graph(session)
        if not as_json:
            print_text(shown["graph"])
    if dag is not None:
        write_text(dag, dump.dump_dag(session))


def _show_rest(
    session: Any,
    shown: dict[str, Any],
    sets: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    dump_ir: bool,
    as_json: bool,
) -> None:
    from fx2onnx.cli.run_data import print_profile
    from fx2onnx.runner import dump

    if not as_json:
        if rows:
            print_profile(rows)
        if dump_ir:
            print_text(dump.dump_ir(session))
        return
    shown |= sets[-1]
    if len(sets) > 1:
        shown["data_sets"] = sets
    if rows:
        shown["profile"] = rows
    if dump_ir:
        shown["ir"] = dump.dump_ir(session)
    print_json(shown)


@contextlib.contextmanager
def _trace_file(wanted: bool) -> Iterator[str]:
    """The prefix of a trace in a temporary folder, or an empty one."""
    if not wanted:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="fx2onnx_", ignore_cleanup_errors=True) as folder:
        yield str(Path(folder) / "trace")


def _finish_profile(session: Any, prefix: str, trace: Path | None) -> list[dict[str, Any]]:
    from fx2onnx.cli.run_data import read_profile

    written = Path(session.end_profiling())
    if trace is not None:
        with replacing(trace) as temporary:
            temporary.write_bytes(written.read_bytes())
    return read_profile(written)


def _save(path: Path, outputs: Mapping[str, Any]) -> None:
    import numpy as np

    if path.suffix == ".npy":
        what = "--output writes all outputs into one .npz file"
        raise UserError("E001", what, next=f"-o {path.with_suffix('.npz')}")
    loose = [name for name, value in outputs.items() if not isinstance(value, np.ndarray) or value.dtype.kind == "O"]
    if loose:
        raise UserError("E301", f"the output '{loose[0]}' is no array of numbers, which .npz files hold")
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **outputs)


def _session(model: Path, engine: str, profile_prefix: str) -> Any:
    from fx2onnx.judge.engines import SESSIONS, chosen_engines, open_session

    (name,) = chosen_engines([engine], SESSIONS)
    if name != "runner":  # which checks what it loads
        from fx2onnx.semantics.check import open_file

        open_file(model)
    return open_session(name, str(model), profile_prefix)


def _run(session: Any, feeds: Mapping[str, Any], repeats: int) -> list[Any]:
    from fx2onnx.judge.engines import run_session

    for _ in range(repeats):
        outputs = run_session(session, feeds)
    return outputs
