"""``fx2onnx.export_folder``: a generating transformers model as a folder of ONNX files, configs and tokenizer files."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from fx2onnx.base.errors import UserError
from fx2onnx.base.notices import warn
from fx2onnx.base.targets import path_text
from fx2onnx.exporting import layouts, pipeline
from fx2onnx.exporting.adapters import make_optional, write_adapters
from fx2onnx.exporting.components import PipelineAssembly, of_component
from fx2onnx.exporting.contract import manifest_of
from fx2onnx.exporting.inference_metadata import write_inference_metadata
from fx2onnx.exporting.options import IN_PLACE_OPSET, LAYOUTS, ONNX_GENAI, ExportOptions, FolderOptions
from fx2onnx.exporting.result import ExportedFolder
from fx2onnx.files.folder_commit import CHECKED_SUFFIXES, MANIFEST, commit_folder
from fx2onnx.files.folder_files import inside
from fx2onnx.files.pipeline_index import PREFIX, is_pipeline_source
from fx2onnx.files.staging import cannot_write, check_folder, staged
from fx2onnx.irx import reference
from fx2onnx.irx.reference import save_together
from fx2onnx.judge import Effort
from fx2onnx.manifest.names import LOGITS, PAST_SIZE, PROMPT_FILE
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.assumptions import Assumed, Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim, apply, innermost_first
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import interval

if TYPE_CHECKING:
    from fx2onnx.decoding.parts import Assembly
    from fx2onnx.decoding.recipes.recipe import FolderPart
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source

DEFAULTS = ExportOptions()

DATA_STEM = "weights"
"""Weights of several models in one folder: ``weights.<digest>.data``."""

_COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe")
_NOT_COPIED = (".index.json", MANIFEST, layouts.CONFIG_FILE)
"""Endings of files that are not copied, such as those that an earlier export into the checkpoint's own folder wrote."""


def write_folder(spec: str, output: str | os.PathLike[str], options: FolderOptions) -> ExportedFolder:
    """``fx2onnx.export_folder`` with its options as one value."""
    from fx2onnx.decoding.parts import assemble, with_adapters

    target = check_folder(Path(path_text(output, "the folder")).expanduser())
    cache, asked, more = options.cache_form, options.with_opset, options.source
    origin = {"source": spec, "task": options.task} | {
        key: value for key, value in {**more, **options.cells}.items() if value is not None
    }
    if isinstance(spec, str) and (spec.startswith(PREFIX) or is_pipeline_source(spec)):
        pipe = PipelineAssembly.of(spec, more, options.adapter_folders)
        return export_assembly(pipe, target, asked, engines=options.engines, origin=origin, packages=options.package)
    if asked.is_for_genai:
        layouts.check_task(options.task)
    in_place = asked.opset_version is not None and asked.opset_version >= IN_PLACE_OPSET
    assembly = assemble(spec, options.task, in_place=in_place, **options.form(cache), **more)
    assembly = with_adapters(assembly, options.adapter_folders)
    more = {"packages": options.package, "layout": options.layout}
    return export_assembly(assembly, target, asked, engines=options.engines, origin=origin, **more)


def export_assembly(
    assembly: Assembly | PipelineAssembly,
    target: Path,
    options: ExportOptions = DEFAULTS,
    *,
    engines: Sequence[str] | None = None,
    origin: Mapping[str, Any] | None = None,
    packages: bool = False,
    layout: str = LAYOUTS[0],
) -> ExportedFolder:
    """Export the parts of ``assembly`` into ``target``; ``origin`` is what was asked for, which the folder keeps, and with
    ``packages`` it is a model package, too. layout: one of ``LAYOUTS``.
    """
    from fx2onnx.exporting.functions import require_modules

    done = ExportedFolder(target)
    results: dict[str, ExportResult] = {}
    if isinstance(assembly, PipelineAssembly):
        for file, make in assembly.sources():
            with of_component(file):
                done.sources[file] = make()
                results[file] = _export(done.sources[file], options)
    else:
        require_modules(assembly.model, options.functions)
        for part in assembly.parts:
            done.notes += [part.note] if part.note else []
            for file, (result, source) in _export_part(part, options, done.notes).items():
                results[file], done.sources[file] = result, source
    warn(text for result in results.values() for text in result.report.warnings)
    check = functools.partial(_verify, done, engines=engines, effort=options.effort) if options.verify else None
    if layout != LAYOUTS[0]:
        layouts.check_layout(layout, results)
    js = layouts.js_dtype_of(options) if layout == layouts.TRANSFORMERS_JS else None
    extra = [layouts.write_config] if options.is_for_genai else []
    extra += [write_inference_metadata] if layout == ONNX_GENAI else []
    _write_parts(assembly, results, done, check, origin or {}, extra=extra, packages=packages, js=js)
    done.files = sorted(entry.name for entry in target.iterdir() if entry.is_file())
    done.reports = {layouts.js_file_of(js) if js else name: result.report for name, result in results.items()}
    done.files += [layouts.js_file_of(js)] if js else []
    return done


def _write_parts(
    assembly: Assembly | PipelineAssembly,
    results: dict[str, ExportResult],
    done: ExportedFolder,
    check: Callable[[Path], None] | None,
    origin: Mapping[str, Any],
    *,
    extra: Sequence[Callable[[Any, Mapping[str, ExportResult], Path], None]] = (),
    packages: bool = False,
    js: str | None = None,
) -> None:
    """Write everything, or nothing. extra: what writes the configs of an engine. js: the dtype in the layout of transformers.js. ``check`` looks at a folder of files: before the commit, where they can be read there."""
    target = done.path
    needs_weights_beside_it = _refers(results)
    if isinstance(assembly, PipelineAssembly):
        manifest = assembly.manifest(results, origin, target)
    else:
        make_optional(assembly.adapters, results)
        manifest = manifest_of(assembly, results, done.sources, origin, target)
    with staging(target) as stage:
        _write(results, stage, target, is_whole=js is not None)
        if isinstance(assembly, PipelineAssembly):
            assembly.write_configs(stage, target)
        else:
            _write_configs(assembly, stage, target)
            manifest = replace(manifest, adapters=write_adapters(assembly.adapters, results, stage))
            for write in extra:
                write(assembly.model, results, stage)
        if packages:
            layouts.write_package(results, target.name, stage)
        if check is not None and not needs_weights_beside_it:
            check(stage)
        if js is not None:
            manifest = layouts.laid_out_for_js(stage, js, manifest)
        commit_folder(stage, target, manifest.facts(), keep=_own_files(assembly, target))
    if check is not None and needs_weights_beside_it:
        check(target)


_Exported: TypeAlias = "tuple[ExportResult, Source]"


def _export_part(part: FolderPart, options: ExportOptions, notes: list[str]) -> dict[str, _Exported]:
    """The first form that exports and holds at every length, or a graph for prompts and one for steps, by file name. A
    reason is noted where there is neither the first form nor a graph for prompts.
    """
    problem: UserError | None = None
    for make in part.forms:
        made = _tried(make, options, holds=make is not part.forms[-1])
        if isinstance(made, UserError):
            problem = problem or made
            continue
        notes += [f"{part.file} is right while {limit}" for limit in _limits(made[0])]
        both = _prompt_and_step(part, None if problem else made, made, options)
        if both is None:
            notes += [f"{part.file} takes {part.narrow} a call: {problem.what}"] if problem and part.narrow else []
            return {part.file: made}
        notes.append(f"{PROMPT_FILE} takes the prompt, {part.file} each later token")
        return both
    assert problem is not None
    raise problem


def _prompt_and_step(
    part: FolderPart, first: _Exported | None, made: _Exported, options: ExportOptions
) -> dict[str, _Exported] | None:
    """A graph for prompts and one for single tokens: ``first``, where the first form was ``made``, and the second; or
    ``part.prompt`` and what was ``made`` instead.
    """
    if (first is not None and not part.has_steps) or part.prompt is None:
        return None
    prompt = first or _tried(part.prompt, options, holds=True)
    step = made if first is None else _tried(part.forms[1], options, holds=False)
    if isinstance(prompt, UserError) or isinstance(step, UserError) or not _is_of_one_token(step[0]):
        return None
    return {part.file: step, PROMPT_FILE: prompt}


def _is_of_one_token(result: ExportResult) -> bool:
    """Return whether a step gives logits of the token that it takes; of more, it has added rows of the batch to one another."""
    logits = next(value for value in result.owned.model.graph.outputs if value.name == LOGITS)
    return logits.shape is not None and logits.shape[1] == 1


def _tried(make: Callable[[], Source], options: ExportOptions, *, holds: bool) -> _Exported | UserError:
    """The export of the source that ``make`` returns; with ``holds`` it has to be right at every length."""
    source = make()
    try:
        result = _export(source, options)
    except UserError as error:
        return error
    why = _flaw(result, source) if holds else ""
    return UserError("E105", why) if why else (result, source)


def _export(source: Source, options: ExportOptions) -> ExportResult:
    from fx2onnx.exporting.adapters import as_file, drop_unused, translations_of
    from fx2onnx.exporting.functions import found_in

    capture = replace(
        options.capture,
        dynamic_shapes={name: dict(axes) for name, axes in (source.dynamic_shapes or {}).items()} or None,
        bake=source.bake,
        data_branches=source.data_branches,
    )
    asked = replace(
        options,
        capture=capture,
        weight_files=source.weight_files,
        custom_translations=translations_of(source.module),
        functions=found_in(source.module, options.functions),
        verify=False,
    )
    with as_file(source.module):
        result = pipeline.run(source.module, source.args, source.kwargs, None, asked, warns=False)
    drop_unused(result, source)
    _state_limits(result, with_lines=options.metadata != "none")
    return result


def _state_limits(result: ExportResult, *, with_lines: bool) -> None:
    """Write the conditions on the length of the past, by which Python branches, into the file: generation goes on to
    any length."""
    properties = result.owned.model.metadata_props
    limits = [replace(found, by_user=True) for found in result.report.assumptions if _is_limit(found)]
    text = size_conditions.written(
        limits, with_lines=with_lines, beside=properties.get(size_conditions.METADATA_KEY, "[]")
    )
    if text is not None:
        properties[size_conditions.METADATA_KEY] = text


_PAST = Dim.symbol(PAST_SIZE)


def _limits(result: ExportResult) -> list[str]:
    """The lines on the length of the past up to which the model's Python does what the graph does."""
    limits = {str(found.relation) for found in result.report.assumptions if _is_limit(found)}
    bounds = (
        found
        for found in result.report.assumptions
        if isinstance(found, Condition) and _is_upper_bound(found) and found.sizes.last() is not None
    )
    return sorted(limits | {bound.expression for bound in bounds})


def _is_upper_bound(condition: Condition) -> bool:
    """Return whether a condition allows every size up to one, or every size but 0, of which there is no prompt."""
    return condition.sizes in (interval(0, condition.sizes.last()), interval(1, None))


def _is_limit(found: Assumed) -> TypeGuard[Guard]:
    """Return whether a condition is ``past_sequence_length + NUMBER < NUMBER``, or with ``<=``."""
    if not isinstance(found, Guard) or found.relation.op not in ("lt", "le"):
        return False
    length, limit = found.relation.args
    return isinstance(length, Dim) and not isinstance(length - _PAST, Dim) and not isinstance(limit, Dim)


_ABOUT_ONE_TOKEN = frozenset({("ne", 1), ("eq", 1), ("ne", 0), ("gt", 0), ("gt", 1)})
"""Comparisons that all prompts of several tokens answer alike."""


def _flaw(result: ExportResult, source: Source) -> str:
    """The reason why the graph would be wrong at other lengths or after a past; empty where it is right."""
    from fx2onnx.decoding.decoder import WholePrompt

    unused = [v for v in result.owned.model.graph.inputs if (v.name or "").startswith("past_") and not v.uses()]
    for state in unused:
        if 0 not in (state.shape or ()):  # of keys without positions there is nothing to read: DeepSeek's, of width 0
            return f"forward ignores the state {state.name} where it gets several tokens"
    for found in result.report.assumptions:
        if isinstance(found, Condition) and _is_of_length(found.name) and not _is_upper_bound(found):
            return f"forward needs of the length: {found}"
    is_prompt = isinstance(source.module, WholePrompt)
    if not is_prompt and not any(name.endswith(("_state", "recurrent")) for name in source.kwargs):
        return ""
    for found in result.report.assumptions:
        if isinstance(found, Condition | Guard | Specialization) and _depends_on_length(found.relation):
            return f"forward decides by the length: {found}"
    return ""


def _depends_on_length(relation: Relation) -> bool:
    """Return whether some lengths of several tokens make a condition true and others false."""
    relation = _without_common_factor(relation)
    if not any(map(_is_of_length, relation.symbols())):
        return False
    size, other = relation.args[0], relation.args[-1]
    if not isinstance(size, Dim) or (relation.op, other) not in _ABOUT_ONE_TOKEN:
        return True
    return any(atom.op == "floordiv" for atom in innermost_first(size))


def _is_of_length(name: str) -> bool:
    return f"_{name}".endswith("_sequence_length")


def _without_common_factor(relation: Relation) -> Relation:
    """``m != 1`` for ``n*m != n`` and ``n != n*m``, which are the same of sizes above 0."""
    if relation.op == "ne" and all(isinstance(arg, Dim) for arg in relation.args):
        for product, factor in (relation.args, relation.args[::-1]):
            quotient = apply("floordiv", product, factor)
            if isinstance(quotient, Dim) and quotient * factor == product:
                return Relation("ne", (quotient, 1))
    return relation


def _refers(results: dict[str, ExportResult]) -> bool:
    return any(reference.is_referenced(result.owned.model) for result in results.values())


def _write(results: dict[str, ExportResult], stage: Path, target: Path, *, is_whole: bool) -> None:
    if _refers(results) or len(results) == 1:
        for name, result in results.items():
            if reference.is_referenced(result.owned.model):
                result.report.file_bytes = reference.save(result.owned.model, stage / name, home=target).model_bytes
            else:
                result.save(stage / name, external_data=False if is_whole else None)
    else:
        total_bytes = save_together({name: result.owned.model for name, result in results.items()}, stage, DATA_STEM)
        for result in results.values():
            result.report.file_bytes = total_bytes


def _write_configs(assembly: Assembly, stage: Path, target: Path) -> None:
    """Config and tokenizer files of the checkpoint; of a model without one, what it was made from; of a GGUF file, what it says."""
    from fx2onnx.decoding.recipes.recipe import language_of
    from fx2onnx.sources.hf.gguf import write_tokenizer

    if assembly.folder is None:
        assembly.model.config.save_pretrained(stage)
        if getattr(assembly.model, "generation_config", None) is not None:
            language_of(assembly.model).generation_config.save_pretrained(stage)
        if assembly.gguf is not None:
            write_tokenizer(assembly.gguf, stage)
        return
    for path in sorted(assembly.folder.iterdir() if assembly.folder.resolve() != target.resolve() else ()):
        if path.name.endswith(_COPIED) and not path.name.endswith(_NOT_COPIED) and path.is_file():
            shutil.copyfile(inside(assembly.folder, path.name), stage / path.name)


def _own_files(assembly: Assembly | PipelineAssembly, target: Path) -> list[str]:
    """The checkpoint's files, where the folder is the checkpoint's own."""
    if isinstance(assembly, PipelineAssembly):
        return assembly.own_files(target)
    folder = assembly.folder or (assembly.gguf.parent if assembly.gguf else None)
    is_own = folder is not None and folder.resolve() == target.resolve()
    return [path.name for path in target.iterdir() if not path.name.endswith(CHECKED_SUFFIXES)] if is_own else []


def _verify(done: ExportedFolder, folder: Path, *, engines: Sequence[str] | None, effort: Effort) -> None:
    from fx2onnx.exporting.adapters import samples_of
    from fx2onnx.verify.compare import verify

    for name, source in done.sources.items():
        path = str(folder / name)
        # Inputs of a step hang together (mask, cache, positions): values drawn apart mean nothing to it.
        for kwargs in samples_of(source.module) or [source.kwargs]:
            verdict = verify(
                path, source.module, source.args, kwargs, engines=engines, bake=source.bake, seeds=(), effort=effort
            )
            done.verdicts[name] = verdict
            if not verdict.ok:
                break


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder in ``target`` to write into. Where the block fails, nothing is left of it, nor of a new ``target``."""
    is_new = not target.exists()
    try:
        target.mkdir(exist_ok=True)
        with staged(target) as stage:
            inside = Path(stage, "new")
            inside.mkdir()
            yield inside
    except BaseException as cause:
        if is_new:
            with contextlib.suppress(OSError):  # not empty: the new files are there
                target.rmdir()
        if isinstance(cause, OSError):
            raise cannot_write(target, cause) from cause
        raise
