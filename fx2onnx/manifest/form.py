"""``fx2onnx.json``: what an exported folder says about itself. Export writes it, ``fx2onnx.load`` obeys it.

The file is data from wherever the folder comes from, so ``read_manifest`` checks every key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.base.typed_json import Misfit, Only, built, within
from fx2onnx.files.folder_commit import MANIFEST, VERSION, FileEntry, is_member_name, is_plain_name, path_now
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.sizes.stated import SizeCondition, StatedCondition

Kind: TypeAlias = Literal["forward", "decode", "prompt", "encoder", "embed", "image", "audio", "draft", "component"]
"""The task of a graph. ``forward`` takes all tokens, without a cache; ``decode`` takes tokens and a cache; ``prompt``
the first tokens, before ``decode``; ``encoder`` is that of an encoder-decoder, ``image`` and ``audio`` are encoders of
media beside the text; ``embed`` puts their features among the embedded tokens. ``draft`` predicts the token behind a token from
the hidden state before it. ``component``: a method of a component
of a diffusers pipeline; no other kind is beside it."""
Role: TypeAlias = Literal[
    "tokens", "decoder_tokens", "embedded", "mask", "positions", "length", "pages", "logits",
    "encoder_states", "encoder_mask", "handed_on", "media", "features", "stream", "beside", "token_mask", "adapter", "hidden",
    "other",
]  # fmt: skip
"""The role of an input or output. ``length``: the number of tokens that a cache of fixed size holds. ``pages``: the
pages of each row in a paged cache. ``handed_on``:
outputs of the encoder beside its states. ``media``: inputs of the caller beside the text. ``features``: outputs of the
encoders of media. ``stream``: features with a row for each token, given or generated. ``beside``: outputs of ``embed``
beside the embedded tokens. ``token_mask``: a mask with a row for each token, ones where the caller gives none.
``adapter``: a part of a LoRA adapter, which a call may leave out. ``hidden``: the last hidden states, which ``draft`` takes. ``handed_on``, ``features`` and ``beside`` have the same name in the graph that gives them and in the one that takes
them."""
Length: TypeAlias = Literal["past", "window", "own", "capacity", "pages", "constant"]
"""The size of a state's axis of tokens: as long as the past; at most a window; by a rule of the graph's own; as the
caller chooses; ``pages``: as many pages of so many tokens as the second size says; or ``constant`` for states without such an axis."""
FIXED = ("capacity", "pages")
"""The lengths of caches that are allocated once, and written in place."""

_Count = Annotated[int, within(0, 2**63 - 1)]
_Token = Annotated[int, within(0, 2**31)]
_IS_LINE = Only("a line of text", lambda value: len(value) < 4096 and value.isprintable(), {"maxLength": 4095})
_Text = Annotated[str, _IS_LINE]
_PlainName = Annotated[str, Only("the name of a file in the folder", is_plain_name, {"pattern": r"^[^/\\:\u0000]+$"})]
_MemberName = Annotated[
    str,
    Only(
        "the name of a file in the folder or a folder in it",
        is_member_name,
        {"pattern": r"^(?!\.\.?(/|$))[^/\\:\u0000]+(/(?!\.\.?$)[^/\\:\u0000]+)?$"},
    ),
]
_Shape = tuple[int | str, ...]


def _is_numbers(value: Any) -> bool:
    """A number, or a list of such of one shape."""
    if not isinstance(value, list):
        return isinstance(value, bool | float) or (type(value) is int and -(2**63) <= value < 2**63)
    return all(map(_is_numbers, value)) and len({_shape(item) for item in value}) <= 1


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value), *_shape(value[0] if value else 0)) if isinstance(value, list) else ()


@dataclass(frozen=True)
class Port:
    """An input or output of a graph that holds no cache. A size is a number or the name of one."""

    name: _Text
    role: Role
    dtype: _Text
    shape: _Shape


@dataclass(frozen=True)
class CacheState:
    """A tensor of the cache: the graph's input and output that hold it, null where it has none.

    An input without output stays as another graph gives it. Before the first token all numbers are ``initial``;
    ``batch_size`` and ``max_length`` are the sizes of that name, any other size with a name is 0.
    ``axis`` is that of tokens; ``window`` is how many there are at most.
    """

    name: _Text
    input: _Text | None
    output: _Text | None
    dtype: _Text
    shape: _Shape
    length: Length
    axis: _Count | None = None
    window: _Count | None = None
    initial: float = 0


@dataclass(frozen=True)
class GraphForm:
    """A graph: its file, and what its inputs and outputs are.

    ``tokens``            whether a call takes the tokens that the cache has not seen, or all of them;
    ``tokens_per_call``   how many tokens it takes a call, null for any number;
    ``mask``              whether the attention mask is of the tokens of the call alone, or of all; ``ones``: of all, none of which
                          may be padding;
    ``positions``         counted from the mask, or as the graph ``embed`` gives them;
    ``conditions``        what the sizes of inputs have to keep for the graph to be right.
    """

    file: _MemberName
    kind: Kind
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    cache: tuple[CacheState, ...] = ()
    tokens: Literal["new", "all"] = "new"
    tokens_per_call: _Count | None = None
    mask: Literal["new", "all", "ones"] = "all"
    positions: Literal["none", "mask", "embed"] = "none"
    conditions: tuple[StatedCondition, ...] = ()

    @property
    def stem(self) -> str:
        return self.file.rsplit("/", 1)[-1].removesuffix(".onnx")

    def input(self, role: Role) -> str:
        """The name of the first input of that role, empty where there is none."""
        return next((port.name for port in self.inputs if port.role == role), "")

    def output(self, role: Role) -> str:
        return next((port.name for port in self.outputs if port.role == role), "")

    def size_conditions(self) -> list[SizeCondition]:
        """Raises ValueError where one says nothing of sizes."""
        return list(map(SizeCondition.of, self.conditions))

    @property
    def has_fixed_cache(self) -> bool:
        return any(state.length in FIXED for state in self.cache)

    @property
    def goes_on(self) -> bool:
        """True if a call goes on where the last one ended; else every call takes all tokens."""
        return any(state.input is not None for state in self.cache)


@dataclass(frozen=True)
class Grid:
    """The input that says the size of each image, a row for one: its frames (1, if at all), rows and columns of patches.

    The encoder takes one image a call: so many rows of its other inputs as the image has patches. A feature is made of
    ``merge_size`` rows and columns of them.
    """

    input: _Text
    merge_size: Annotated[int, within(1, 2**31)]


@dataclass(frozen=True)
class Medium:
    """The medium of inputs beside the text: the kind of graph that encodes it, whether no prompt is without, the features that
    stand in the places of the placeholder ``token``, and the input with the sizes of images where these are free.
    """

    kind: Literal["image", "audio"]
    is_required: bool = False
    features: _Text | None = None
    token: int | None = None
    grid: Grid | None = None


@dataclass(frozen=True)
class PromptRewrite:
    """The change that the model's own ``generate`` makes to a prompt before its language model gets it: so many of the
    last tokens are left out, another one is first. And the tokens that end it and fill rows, where that ``generate``
    says so."""

    left_out: _Token = 0
    first_token: _Token | None = None
    eos_token_id: _Token | None = None
    pad_token_id: _Token | None = None


@dataclass(frozen=True)
class Precise:
    """The dtype that was asked for, and of each node in float32, by its result, the operator and the reason."""

    dtype: _Text
    kept: Mapping[_Text, _Text] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineComponent:
    """A component of a diffusers pipeline: its name, the graph of each of its methods, and tensors that the pipeline reads from it."""

    name: _Text
    graphs: Mapping[_Text, _PlainName]
    values: Mapping[_Text, Annotated[Any, Only("an array of numbers", _is_numbers)]] = field(default_factory=dict)


@dataclass(frozen=True)
class AdapterFile:
    """An adapter that a call can ask for by its name, and the ``.onnx_adapter`` file with its inputs."""

    name: _Text
    file: _PlainName


@dataclass(frozen=True)
class Manifest:
    """The whole file.

    ``source, task, seed, options``  what was exported, how random weights are drawn, and the other options of the source;
    ``baked``                        inputs that are constants of the graphs, as nested lists of numbers;
    ``codebook_delays``              by how many steps each codebook is written later;
    ``precision``                    of graphs in 16 bits, what computes in float32, and why;
    ``components``                   of a diffusers pipeline, whose class ``model_index.json`` names;
    ``adapters``                     LoRA adapters that are switched at run time;
    ``files, copied, obsolete``      size and digest of each graph and file of weights, of each config, and of what an
                                     earlier export left; a file that none of them names is not compared.
    """

    version: int
    graphs: tuple[GraphForm, ...]
    source: _Text = ""
    task: _Text = ""
    seed: Annotated[int, within(-(2**63), 2**64 - 1)] = 0
    options: Mapping[_Text, str | int | float | bool | None] = field(default_factory=dict)
    media: tuple[Medium, ...] = ()
    baked: Mapping[_Text, Annotated[Any, Only("an array of numbers", _is_numbers)]] = field(default_factory=dict)
    prompt_rewrite: PromptRewrite | None = None
    codebook_delays: tuple[Annotated[int, within(0, 4096)], ...] = ()
    precision: Mapping[_MemberName, Precise] = field(default_factory=dict)
    components: tuple[PipelineComponent, ...] = ()
    adapters: tuple[AdapterFile, ...] = ()
    files: Mapping[_MemberName, FileEntry] | None = None
    copied: Mapping[_MemberName, FileEntry] | None = None
    obsolete: Mapping[_MemberName, FileEntry] | None = None

    def facts(self) -> dict[str, Any]:
        """The facts that are written beside the version and the files, which the commit of a folder adds."""
        return {
            key: value
            for key, value in dataclasses.asdict(self).items()
            if key not in ("version", "files", "copied", "obsolete")
        }

    def graph(self, *kinds: Kind) -> GraphForm | None:
        """The first graph of one of ``kinds``."""
        return next((graph for graph in self.graphs if graph.kind in kinds), None)


OLDEST = 2
"""The oldest version that can be read: it says nothing of conditions."""
_AGAIN = "export the folder again"


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError E302, which names the file and the key."""
    path = inside(folder, MANIFEST)
    if not path.exists():
        raise UserError(
            "E302", f"the folder '{folder}' has no {MANIFEST}", why="it says what each graph is", next=_AGAIN
        )
    stated = read_object(path, finite=True)
    version = stated.get("version")
    if type(version) is int and version > VERSION:
        why = f"it is of version {version}, this fx2onnx knows {VERSION}"
        raise UserError("E302", f"cannot read '{path}'", why=why, next="pip install --upgrade fx2onnx")
    if version is None or (type(version) is int and version < OLDEST):
        why = f"it is of version {version or 1}, which does not say what each graph is; this fx2onnx reads {OLDEST} to {VERSION}"
        raise UserError("E302", f"cannot read '{path}'", why=why, next=_AGAIN)
    try:
        manifest = built(Manifest, stated)
        for problem in _contradictions(manifest):
            raise Misfit(problem)
    except Misfit as misfit:
        raise UserError("E302", f"cannot read '{path}'", why=str(misfit), next=_AGAIN) from misfit
    return manifest


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """The contradictions between keys."""
    kinds = [graph.kind for graph in manifest.graphs]
    if manifest.components:
        yield from _of_components(manifest)
        return
    mains = [kind for kind in kinds if kind in ("forward", "decode")]
    if len(mains) != 1 or len(set(kinds)) < len(kinds):
        yield f"graphs are {', '.join(kinds) or 'none'}, not one of forward and decode, and at most one of each other kind"
        return
    main = manifest.graph("forward", "decode")
    made = {state.name for graph in manifest.graphs for state in graph.cache if state.output is not None}
    made |= {port.role for graph in manifest.graphs for port in graph.outputs}
    if main is not None and main.tokens == "new" and not main.goes_on:
        yield f"{main.file} takes new tokens alone, and has no cache to go on with"
    for place, graph in enumerate(manifest.graphs):
        try:
            graph.size_conditions()
        except ValueError as cause:
            yield f"graphs[{place}].conditions: {cause}"
        for port in graph.inputs if graph is main else ():
            if port.role in ("embedded", "encoder_states", "handed_on", "stream", "beside") and port.role not in made:
                yield f"graphs[{place}].inputs have {port.name}, which no graph gives"
        for number, state in enumerate(graph.cache):
            key = f"graphs[{place}].cache[{number}]"
            if state.name not in made:
                yield f"{key}.output is null, and no other graph gives {state.name}"
            if (state.axis is None) != (state.length == "constant") or (state.axis or 0) >= max(len(state.shape), 1):
                yield f"{key}.axis is {state.axis}, which does not fit the length {state.length}"
            if (state.window is None) != (state.length != "window"):
                yield f"{key}.window is {state.window}, which does not fit the length {state.length}"
    for place, adapter in enumerate(manifest.adapters):
        if manifest.files is not None and adapter.file not in manifest.files:
            yield f"adapters[{place}].file is {adapter.file}, which is none of the files"
    for place, medium in enumerate(manifest.media):
        if medium.kind not in kinds:
            yield f"media[{place}].kind is {medium.kind}, and there is no such graph"
        elif medium.grid is not None and medium.grid.input not in _taken_by(manifest, medium.kind, "embed"):
            yield f"media[{place}].grid is {medium.grid.input}, which no graph takes"


def _of_components(manifest: Manifest) -> Iterator[str]:
    named = [file for component in manifest.components for file in component.graphs.values()]
    files = [graph.file for graph in manifest.graphs]
    if sorted(named) != sorted(files) or any(graph.kind != "component" for graph in manifest.graphs):
        yield f"components have the graphs {', '.join(named) or 'none'}, and graphs are {', '.join(files) or 'none'}"
    for place, graph in enumerate(manifest.graphs):
        try:
            graph.size_conditions()
        except ValueError as cause:
            yield f"graphs[{place}].conditions: {cause}"


def _taken_by(manifest: Manifest, *kinds: Kind) -> set[str]:
    return {port.name for graph in manifest.graphs if graph.kind in kinds for port in graph.inputs}


def graph_files(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """The file from which each graph is read, by name.

    Raises:   UserError E302 where a graph or weights are missing, or not what was written.
    """
    files = manifest.files or {}
    for name, entry in files.items():
        _check_file(folder, name, entry)
    names = [graph.file for graph in manifest.graphs]
    for name in names:
        if name not in files and not inside(folder, name).is_file():
            raise _lacks(folder, name)
    return {name: path_now(folder, name, files[name].digest) if name in files else folder / name for name in names}


def file_now(folder: Path, manifest: Manifest, name: str) -> Path:
    """The path from which the config or the adapter ``name`` is read, if it is there."""
    entry = {**(manifest.copied or {}), **(manifest.files or {})}.get(name)
    return folder / name if entry is None else path_now(folder, name, entry.digest)


def changed_copies(folder: Path, manifest: Manifest) -> list[str]:
    """A warning for each config or file of a tokenizer that is not what was exported: people may edit them, and other tokens may follow.

    Raises:   UserError E302 where one cannot be read.
    """
    found = []
    for name, entry in (manifest.copied or {}).items():
        try:
            _check_file(folder, name, entry)
        except UserError as error:
            if error.__cause__ is not None:
                raise
            found.append(f"{error.what}: where that is meant, take {name} out of copied in {MANIFEST}")
    return found


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    path = inside(folder, path_now(folder, name, entry.digest).relative_to(folder).as_posix())
    try:
        found = FileEntry.of(path) if path.is_file() and path.stat().st_size == entry.bytes else None
    except OSError as cause:
        raise UserError("E302", f"cannot read '{path}'", why=str(cause)) from cause
    if found == entry:
        return
    if not path.exists():
        raise _lacks(folder, name)
    raise UserError(
        "E302",
        f"'{folder / name}' is not the file that was exported",
        why=f"{MANIFEST} has another size or digest for it",
        next=["export the folder again, or copy all of its files",
              f"or take {name} out of files in {MANIFEST}, if you changed it on purpose"],
    )  # fmt: skip


def _lacks(folder: Path, name: str) -> UserError:
    return UserError("E302", f"the folder '{folder}' lacks {name}", why=f"{MANIFEST} names it")
