"""The contents of ``fx2onnx.json`` for an export: each graph's part in generation, by the names that its recipe gave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fx2onnx.base.source import relative_path
from fx2onnx.files.folder_commit import VERSION
from fx2onnx.manifest import names
from fx2onnx.manifest.form import CacheState, GraphForm, Kind, Length, Manifest, Medium, Port, Precise, Role
from fx2onnx.sizes import stated as size_conditions

if TYPE_CHECKING:
    import onnx_ir as ir

    from fx2onnx.decoding.parts import Assembly
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source

_KINDS: dict[str, Kind] = {
    names.DECODER_FILE: "decode", names.PROMPT_FILE: "prompt", names.ENCODER_FILE: "encoder",
    names.EMBED_FILE: "embed", names.IMAGE_FILE: "image", names.AUDIO_FILE: "audio", names.DRAFT_FILE: "draft",
}  # fmt: skip
_ROLES: dict[str, Role] = {
    names.IDS: "tokens", names.DECODER_IDS: "decoder_tokens", names.EMBEDDED: "embedded", names.MASK: "mask",
    names.POSITIONS: "positions", names.LENGTH: "length", names.TABLE: "pages", names.LOGITS: "logits", names.LAST_STATES: "encoder_states",
    names.ENCODER_STATES: "encoder_states", names.ENCODER_MASK: "encoder_mask", names.STREAM: "stream", names.HIDDEN: "hidden",
    names.HIDDEN_BEFORE: "hidden",
}  # fmt: skip
_GIVEN: dict[Kind, Role] = {"encoder": "handed_on", "embed": "beside", "image": "features", "audio": "features"}
"""The role of the outputs that have none by their name, by the kind of the graph."""
_LENGTHS: dict[str, Length] = {names.PAST_SIZE: "past", names.CAPACITY: "capacity", names.PAGES: "pages"}
Shape: TypeAlias = tuple[int | str, ...]


def manifest_of(
    assembly: Assembly,
    results: Mapping[str, ExportResult],
    sources: Mapping[str, Source],
    origin: Mapping[str, Any],
    target: Path,
) -> Manifest:
    """All but the files. ``origin`` is what was asked for: the source, the task, the seed and other options."""
    from fx2onnx.decoding.recipes.cross_attention import prompt_rewrite
    from fx2onnx.decoding.recipes.delay_pattern import delays_of

    graphs = {name: result.owned.model.graph for name, result in results.items()}
    given: dict[str, Role] = {}
    for name, graph in graphs.items():
        kind = _KINDS.get(name, "forward")
        given |= {output: _output_role(output, kind) for output in described(graph.outputs) if kind in _GIVEN}
    forms = tuple(
        replace(_form(name, graph, given), conditions=conditions_of(results[name]), **_of_module(sources.get(name)))
        for name, graph in graphs.items()
    )
    embedding = sources.get(names.EMBED_FILE)
    stated: Any = () if embedding is None else embedding.module.media
    media = _media(forms) if embedding is None else tuple(_as_exported(medium, forms) for medium in stated)
    baked = {name: source.kwargs[name].tolist() for source in sources.values() for name in source.bake}
    rewrite = prompt_rewrite(assembly.model) if names.MODEL_FILE not in graphs else None
    delays = tuple(delays_of(assembly.model))
    said = {key: origin[key] for key in ("source", "task", "seed") if key in origin}
    place = assembly.folder or assembly.gguf
    if "source" in said and place is not None:
        # As seen from the folder, so that both can be moved together.
        _, mark, query = str(said["source"]).partition("?")
        prefix = "gguf" if assembly.gguf else "hf"
        said["source"] = f"{prefix}:{relative_path(place.resolve(), target.resolve())}{mark}{query}"
    said["options"] = {key: value for key, value in origin.items() if key not in said}
    return Manifest(
        VERSION,
        forms,
        **said,
        media=media,
        baked=baked,
        prompt_rewrite=rewrite,
        codebook_delays=delays,
        precision=precision_of(results),
    )


def precision_of(results: Mapping[str, ExportResult]) -> dict[str, Precise]:
    """The facts of the reports on graphs in 16 bits, by file."""
    return {name: _precise(found) for name, result in results.items() if (found := result.report.precision)}


def _precise(found: Mapping[str, Any]) -> Precise:
    return Precise(found["asked"], {name: f"{each['op']}: {each['why']}" for name, each in found["kept"].items()})


def _of_module(source: Source | None) -> dict[str, Any]:
    """The facts of the module behind a graph."""
    from fx2onnx.decoding.cache.grouped import GroupedDecoder

    return {"mask": "ones"} if source is not None and isinstance(source.module, GroupedDecoder) else {}


def conditions_of(result: ExportResult) -> tuple[size_conditions.StatedCondition, ...]:
    """The conditions on sizes that the graph's own file states."""
    return size_conditions.read_stated(result.owned.model.metadata_props.get(size_conditions.METADATA_KEY, "[]"))


def _media(forms: Sequence[GraphForm]) -> tuple[Medium, ...]:
    """Parts of models whose encoders make more than features in the places of tokens."""
    return tuple(
        Medium(form.kind, is_required=bool(form.cache or form.output("stream")))
        for form in forms
        if form.kind == "image" or form.kind == "audio"
    )


def _as_exported(medium: Medium, forms: Sequence[GraphForm]) -> Medium:
    """``medium``, whose grid says nothing where the graphs were exported with that of the example inputs."""
    taken = {port.name for form in forms for port in form.inputs}
    return medium if medium.grid is None or medium.grid.input in taken else replace(medium, grid=None)


def _form(name: str, graph: ir.Graph, given: Mapping[str, Role]) -> GraphForm:
    """``given`` are the roles of what other graphs give, by name."""
    inputs, outputs = described(graph.inputs), described(graph.outputs)
    past, present = (
        {name.removeprefix(prefix): name for name in ends if name.startswith(prefix)}
        for ends, prefix in ((inputs, names.PAST), (outputs, names.PRESENT))
    )
    ends = {state: (past.get(state), present.get(state)) for state in {**past, **present}}
    states = tuple(
        _state(state, *pair, *{**outputs, **inputs}[pair[0] or pair[1] or ""]) for state, pair in ends.items()
    )
    kind = _KINDS.get(name, "decode" if states else "forward")
    taken = {name: of for name, of in inputs.items() if name not in past.values()}
    ports = tuple(
        Port(name, _input_role(name, of[1], kind, given, graph.initializers), *of) for name, of in taken.items()
    )
    made = {name: of for name, of in outputs.items() if name not in present.values()}
    shapes = {port.role: port.shape for port in reversed(ports)}
    tokens = shapes.get("tokens", shapes.get("embedded", ()))
    width = tokens[1] if len(tokens) > 1 else None
    return GraphForm(
        name,
        kind,
        ports,
        tuple(Port(name, _output_role(name, kind), *of) for name, of in made.items()),
        states,
        tokens="all" if kind == "forward" or names.PAST_SIZE in str(width) else "new",
        tokens_per_call=width if isinstance(width, int) else None,
        mask="new" if "mask" in shapes and shapes["mask"][1] == width else "all",
        positions="none" if "positions" not in shapes else "mask" if len(shapes["positions"]) == 2 else "embed",
    )


def _input_role(name: str, shape: Shape, kind: Kind, given: Mapping[str, Role], optional: Collection[str]) -> Role:
    if name in _ROLES:
        return _ROLES[name]
    if name in optional:
        return "adapter"
    if kind in ("image", "audio", "encoder"):
        return "media"
    return given.get(name, "token_mask" if shape[1:2] == (names.SEQUENCE,) else "media")


def _output_role(name: str, kind: Kind) -> Role:
    is_shortened_mask = kind == "encoder" and name == names.ENCODER_MASK
    return _ROLES[name] if name in _ROLES and not is_shortened_mask else _GIVEN.get(kind, "other")


def _state(name: str, past: str | None, present: str | None, dtype: str, shape: Shape) -> CacheState:
    sizes = {axis: size for axis, size in enumerate(shape) if isinstance(size, str) and size != names.BATCH}
    for axis, size in sizes.items():
        window = names.kept_by_window(size)
        length = _LENGTHS.get(size, "own" if window is None else "window")
        return CacheState(name, past, present, dtype, shape, length, axis, window)
    return CacheState(name, past, present, dtype, shape, "constant")


def described(values: Iterable[ir.Value]) -> dict[str, tuple[str, Shape]]:
    """Dtype and shape of each input, by name."""
    found = {}
    for value in values:
        assert value.name is not None
        assert value.dtype is not None
        assert value.shape is not None
        shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
        found[value.name] = str(value.dtype.numpy().name), shape
    return found
