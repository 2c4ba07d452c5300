"""Functions on files and models that share their names with commands, beside those of ``fx2onnx.api`` and of single rooms."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import require
from fx2onnx.base.stack_frames import public
from fx2onnx.manifest.names import MODEL_FILE

if TYPE_CHECKING:
    from fx2onnx.quantize.options import Quantize
    from fx2onnx.report.profile import Profile
    from fx2onnx.steps.result import OptimizeResult
    from fx2onnx.targets.lint import Finding

Paths = str | os.PathLike[str]


@public
def inspect(path: Any, *, html: Paths | None = None) -> dict[str, Any]:
    """The contents of an ONNX file, or of a folder that fx2onnx exported: inputs, outputs, operators, weights, conditions on sizes.

    path: a path, bytes, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or an ``ExportResult``. html: write a page about the file there.

    Returns: what ``fx2onnx inspect --json`` prints. Raises: ``UserError`` E001, E302, E303.
    """
    from fx2onnx.cli.show_file import facts_of_path
    from fx2onnx.irx.given import as_file, place_of

    with as_file(path) as file:
        facts = facts_of_path(Path(file), None if html is None else Path(html))
    return facts if place_of(path) else {**facts, "file": type(path).__name__}


@public
def lint(model: Any, target: str = "onnxruntime", *, faults: Paths | None = None) -> list[Finding]:
    """The operators of an ONNX file that ``target`` cannot run, with the line of source code and what to do instead.

    model: a path, bytes, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or an ``ExportResult``. target: a runtime or a release of one, such as ``onnxruntime-1.19`` (docs/targets.md).
    faults: a table of known faults of engines beside those of fx2onnx.

    Returns: a list of ``Finding``, empty where nothing stands in the way. Raises: ``UserError`` E001, E302, E303.
    """
    from fx2onnx.semantics.check import open_file
    from fx2onnx.semantics.reading.load import load_model
    from fx2onnx.targets.faults import add_table
    from fx2onnx.targets.form import find
    from fx2onnx.targets.lint import lint as findings_of

    asked = find(target)
    if faults is not None:
        add_table(Path(faults))
    loaded = open_file(model) if isinstance(model, str | os.PathLike) else load_model(model)
    return findings_of(loaded.proto, asked)


@public
def attest(
    path: Any,
    *,
    source: str | None = None,
    out: Paths | None = None,
    bind: bool = False,
    check: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write an in-toto statement about an ONNX file: digests of its files, how it was made, what was compared; or check one.

    path: the file, or an ``ExportResult`` that was written. source: the PyTorch module that the file is compared with, such as ``"hf:FOLDER"``; options: as ``fx2onnx.sources.resolve``
    takes them. out: the statement's file; default: ``PATH.intoto.json``. bind: also write the digests of external data into
    the graph's metadata. check: compare the files, and ``source`` where it is given, with the statement.

    Returns: the statement (docs/attestation.md). Raises: ``VerificationError`` E304 where anything has another digest, E501;
    ``UserError`` E001, E302, E303.
    """
    from fx2onnx.exporting.options import refuse_unknown
    from fx2onnx.irx.given import place_of
    from fx2onnx.proof import attest as proof
    from fx2onnx.proof.attest import read_statement, statement_path
    from fx2onnx.sources import resolve

    known = signature(resolve).parameters.keys() | signature(attest).parameters.keys() | {"stand_ins"}
    refuse_unknown("attest", options, known - {"options"})
    place = None if out is None else Path(out)
    if not (file := place_of(path)):
        what = f"a statement is about a file, and {type(path).__name__} is in memory"
        raise UserError("E001", what, next="write the model, and give its path: model.onnx")
    if check:
        if bind:
            raise UserError("E001", "check=True changes no file, and bind=True does", next="leave one of them out")
        found = read_statement(statement_path(file) if place is None else place)
        again = None if source is None else lambda said: _sourced(file, source, options, said)
        return proof.check(file, found, again)
    if bind:
        proof.bind_data(file)
    if source is None:
        return proof.attest(file, out=place)
    made_from, verdict = _sourced(file, source, options, {})
    verdict.raise_if_failed(f"{os.fspath(file)} differs from eager PyTorch")
    command = {"name": "fx2onnx attest", "options": {"source": source, **options}}
    return proof.attest(file, out=place, command=command, source=made_from, verdict=verdict)


def _sourced(path: Paths, spec: str, options: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[Any, Any]:
    """The content of a source, and the verdict on a file that was made from it. A statement says what the source was asked for with."""
    require("torch")
    from fx2onnx.cli.job import checkpoint_files
    from fx2onnx.cli.options import resolve_source
    from fx2onnx.cli.verify import check_model
    from fx2onnx.exporting.attested import digest_of_state
    from fx2onnx.proof.attest import source_files

    before = (said.get("source") or {}).get("options") or {}
    asked = {**before, **{name: value for name, value in options.items() if value is not None}}
    found = resolve_source(spec, **asked)
    effort: Any = ((said.get("verdict") or {}).get("effort")) or "normal"
    verdict = check_model(Path(path), found, effort=effort)
    files = source_files(checkpoint_files(spec, asked.get("weights")))
    return {
        "spec": spec, "name": found.name, "options": asked, "files": files, "state": digest_of_state(found.module),
    }, verdict  # fmt: skip


@public
def quantize(model: Any, out: Paths | None = None, kind: str | Quantize = "int8", **options: Any) -> OptimizeResult:
    """Store the weights of an ONNX file in fewer bits, and leave the rest of its graph as it is.

    model, out, options: as ``fx2onnx.optimize`` takes them.
    kind: ``int8``, ``int4``, ``uint4``, ``int2``, ``ternary``, ``nf4``, ``float8``, or an
    ``fx2onnx.Quantize``.

    Returns: ``OptimizeResult``. Raises: ``UserError``; ``VerificationError`` where the file would differ from ``model``.
    """
    from fx2onnx.exporting.options import refuse_unknown
    from fx2onnx.steps.pipeline import optimize_model

    refuse_unknown("quantize", options, {*signature(optimize_model).parameters, "kind"})
    return optimize_model(model, out, **{"level": 0, "quantize": kind, **options})


@public
def testcase(
    model: Any,
    folder: Paths,
    *,
    module: Any = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    feeds: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    weights: str = "full",
) -> dict[str, list[str]]:
    """Write a model with inputs and outputs as an ONNX test directory: ``model.onnx`` and ``test_data_set_0``.

    model: as ``verify`` takes it. module, args, kwargs: the PyTorch module and its example inputs, whose outputs are expected,
    with the weights of ``model`` where these are quantized, and in its dtypes. Without a module the runner runs on ``feeds``, arrays or .npy files by the names of inputs, and on random inputs
    where there are none: ``dims`` are sizes of dynamic dimensions. weights: ``full``, or ``statistics``: random numbers like them.

    Returns: the names of ``inputs`` and ``outputs``. Raises: ``UserError``, then ``folder`` is not made.
    """
    from fx2onnx.verify.testcase import check_case, write_case

    check_case(folder, weights)
    if module is not None and (feeds or dims):
        raise UserError("E001", "the inputs come from the module", next="leave out feeds and dims")
    if module is None:
        case = _case_of_feeds(model, feeds or {}, dims or {}, seed)
    else:
        require("torch")
        from fx2onnx.irx.given import as_file
        from fx2onnx.verify.module_case import case_of_module

        with as_file(model) as path:
            case = case_of_module(_opened(model), path, module, args, kwargs)
    write_case(folder, case, weights=weights)
    return {"inputs": sorted(case.feeds), "outputs": sorted(case.outputs)}


def _case_of_feeds(model: Any, feeds: Mapping[str, Any], dims: Mapping[str, int], seed: int) -> Any:
    """The outputs of the runner for ``feeds``; a path among them is a .npy file, and missing ones are random."""
    from fx2onnx.cli.feeds import make_feeds
    from fx2onnx.irx.io import message_of
    from fx2onnx.runner import InferenceSession
    from fx2onnx.verify.testcase import Case

    opened = _opened(model)
    is_path = isinstance(model, str | os.PathLike)
    session = InferenceSession(os.fspath(model) if is_path else message_of(opened).SerializeToString())
    files = {name: os.fspath(value) for name, value in feeds.items() if isinstance(value, str | os.PathLike)}
    arrays = {name: value for name, value in feeds.items() if name not in files}
    given = [item for item in session.get_inputs() if item.name in arrays]
    others = [item for item in session.get_inputs() if item.name not in arrays]
    sizes: dict[Any, int] = {
        dim: size for item in given for dim, size in zip(item.shape, arrays[item.name].shape, strict=False)
    }
    shared = {dim for item in others for dim in item.shape if isinstance(dim, str)}
    sizes = {dim: size for dim, size in sizes.items() if isinstance(dim, str) and dim in shared}
    fed = {**arrays, **make_feeds(others, files, {**sizes, **dims}, seed)}
    names = [item.name for item in session.get_outputs()]
    return Case(opened, fed, dict(zip(names, session.run(None, fed), strict=True)))


def _opened(model: Any) -> Any:
    """A model of any kind as onnx_ir has it."""
    import onnx_ir as ir

    from fx2onnx.semantics.check import open_file
    from fx2onnx.semantics.reading.load import load_model

    if isinstance(model, str | os.PathLike):
        open_file(model)
        return ir.load(model)
    own = model if isinstance(model, ir.Model) else getattr(model, "model", None)
    return own if isinstance(own, ir.Model) else ir.from_proto(load_model(model).proto)


@public
def profile(
    model: Any,
    args: Any = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    compare: Sequence[str] = (),
    repeat: int = 5,
    folder: Paths | None = None,
) -> Profile:
    """Measure what an export of ``model(*args, **kwargs)`` costs: phases, operators, lines of source code and memory.

    compare: other exporters to time beside: ``torch`` (``torch.onnx.export``) and ``torchscript``. repeat: rounds after one to
    warm up, of which medians count. folder: where the file is written while it is timed; None: nothing is written.

    Returns: ``Profile``, with ``to_html``, ``to_json``, ``to_chrome_trace`` and ``to_speedscope``. Raises: ``UserError``.
    """
    require("torch")
    import tempfile

    from fx2onnx.capture.driver import as_module
    from fx2onnx.cli.profile_measure import EXPORTERS, ProfileJob, measure
    from fx2onnx.report.profile_data import OURS
    from fx2onnx.sources.source import Source

    unknown = [name for name in compare if name not in EXPORTERS or name == OURS]
    if unknown:
        raise UserError("E001", f"compare names {unknown[0]!r}", next="torch, torchscript")
    given = args if isinstance(args, tuple) else (args,)
    module = as_module(model)
    source = Source(type(model).__name__, module, given, dict(kwargs or {}))
    place = contextlib.nullcontext() if folder is None else tempfile.TemporaryDirectory(dir=folder)
    with place as name:
        path = None if name is None else Path(name) / MODEL_FILE
        exports, result = measure([OURS, *compare], ProfileJob(source, path, dynamic_shapes), repeat, lambda note: None)
    found: Profile = result.profile
    found.source, found.exports = source.name, exports
    return found
