"""The table of source kinds, and the way from a spec such as ``torchvision:resnet50`` to a ``Source``."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn, Protocol, cast
from urllib.parse import parse_qsl

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public
from fx2onnx.files import pipeline_index
from fx2onnx.sources import embedder_folder
from fx2onnx.sources.model_names import close_specs, is_as_tabled, known_names, specs_named
from fx2onnx.sources.source import WEIGHT_WORDS, Options, Source


class SourceBuilder(Protocol):
    """The interface that the module of a kind provides."""

    def build(self, name: str, options: Options) -> Source: ...

    def names(self) -> list[str]: ...


@dataclass(frozen=True)
class SourceKind:
    """One kind of source. ``module`` is imported on first use; ``package`` must be installed for it."""

    prefix: str
    summary: str
    module: str
    package: str | None = None
    options: frozenset[str] = frozenset({"batch"})
    example: str = ""
    loads_weights: bool = False
    """True if ``build`` itself heeds ``Options.weights`` and ``Options.dtype``."""


_TEXT_AND_IMAGE = frozenset({"batch", "seq", "image_size"})
FACTORY = SourceKind(
    "package.module",
    "a function of yours that returns a module, or (module, args[, kwargs])",
    "fx2onnx.sources.factory",
    options=_TEXT_AND_IMAGE,
    example="my_package.models:make_net?width=64",
)
KINDS: dict[str, SourceKind] = {
    kind.prefix: kind
    for kind in (
        SourceKind(
            "zoo",
            "the models that fx2onnx promises to export",
            "fx2onnx.sources.zoo",
            options=_TEXT_AND_IMAGE,
            example="zoo:resnet50",
        ),
        SourceKind(
            "torchvision",
            "any entry of torchvision.models.list_models(), random weights",
            "fx2onnx.sources.torchvision",
            package="torchvision",
            options=frozenset({"batch", "image_size"}),
            example="torchvision:convnext_tiny?num_classes=10",
        ),
        SourceKind(
            "timm",
            "any entry of timm.list_models(), random weights",
            "fx2onnx.sources.timm",
            package="timm",
            options=frozenset({"batch", "image_size"}),
            example="timm:resnet26d",
        ),
        SourceKind(
            "hf",
            "a folder written by save_pretrained, or a transformers model type with its default config",
            "fx2onnx.sources.hf.kind",
            package="transformers",
            options=_TEXT_AND_IMAGE,
            example="hf:./my-bert  or  hf:gpt2?n_layer=2",
            loads_weights=True,
        ),
        SourceKind(
            "gguf",
            "a GGUF file, its quantized weights kept as they are; also hf:FOLDER with one",
            "fx2onnx.sources.gguf",
            package="transformers",
            options=_TEXT_AND_IMAGE,
            example="gguf:llama-3.2-1b.Q4_K_M.gguf",
            loads_weights=True,
        ),
        SourceKind(
            embedder_folder.PREFIX,
            "a folder of the package: embeddings, scores or sparse vectors in one graph",
            "fx2onnx.sources.sentence_transformers",
            package="sentence_transformers",
            options=_TEXT_AND_IMAGE,
            example="sentence-transformers:./my-embedder",
        ),
        SourceKind(
            "diffusers",
            "a graph of a diffusers pipeline (export-folder: all of them), from a folder with model_index.json",
            "fx2onnx.sources.diffusers.kind",
            package="diffusers",
            options=frozenset({"batch", "seq"}),
            example="diffusers:./my-pipeline?component=unet",
            loads_weights=True,
        ),
        SourceKind(
            "ultralytics",
            "a configuration of ultralytics, random weights, or weights that it saved",
            "fx2onnx.sources.ultralytics",
            package="ultralytics",
            options=frozenset({"batch", "image_size"}),
            example="ultralytics:yolo11n.yaml  or  ultralytics:best.pt",
        ),
        SourceKind(
            "file",
            "what torch.export.save or torch.jit.save wrote (.pt2, TorchScript); also the path alone",
            "fx2onnx.sources.saved",
            options=frozenset(),
            example="net.pt2  or  'net.ts?x=2,3,224,224&ids=int64[2,16]'",
        ),
    )
}
FOLDERS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    embedder_folder.PREFIX: (embedder_folder.MODULES, embedder_folder.is_embedder),
    "diffusers": (pipeline_index.INDEX, pipeline_index.is_pipeline),
    "hf": (
        "config.json, adapter_config.json or a GGUF file",
        lambda folder: any(
            map(os.path.isfile, (folder / "config.json", folder / "adapter_config.json", *folder.glob("*.gguf")))
        ),
    ),
}
"""The contents of a folder of each kind, and a test for it: the first that fits is meant where the folder alone is
given."""
SAVED = (".pt2", ".pt", ".pth", ".ts", ".jit", ".torchscript")
"""The suffixes of files that are a source without ``file:``."""


def prefixes() -> list[str]:
    """The prefixes of all kinds, also of those from other packages."""
    return [*KINDS, *sorted({plugin.name for plugin in plugins.plugins(plugins.SOURCES)} - set(KINDS))]


def kind_of(prefix: str) -> SourceKind | None:
    """The kind with that prefix, ours or another package's; None where there is none.

    Raises:   UserError E603 where the package that has it cannot be used.
    """
    if prefix in KINDS:
        return KINDS[prefix]
    plugin = plugins.find(plugins.SOURCES, prefix)
    if plugin is None:
        return None
    kind = plugin.load()
    if not isinstance(kind, SourceKind) or kind.prefix != prefix:
        raise plugin.unfit(f"it is {kind!r:.80}, no fx2onnx.sources.SourceKind with the prefix '{prefix}'")
    return kind


_FACTORY_PATTERN = re.compile(r"([A-Za-z_][\w.]*|[^:]*\.py):[A-Za-z_][\w.]*")


@public
def resolve(
    spec: str,
    *,
    batch: int | None = None,
    seq: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    weights: str | None = None,
    dtype: str | None = None,
    with_processor: bool = False,
    nms: str | None = None,
) -> Source:
    """The module, sample inputs and dynamic dims that ``spec`` names.

    ``spec`` is ``zoo:NAME``, ``torchvision:NAME``, ``timm:NAME``, ``hf:FOLDER_OR_MODEL_TYPE``, ``gguf:FILE``,
    ``sentence-transformers:FOLDER``, ``ultralytics:NAME.yaml``, ``diffusers:FOLDER?component=NAME``, a folder alone (its files say of which kind it is),
    ``file:PATH`` or ``package.module:factory``, each with optional ``?key=value&key=value``. ``weights`` is ``random``, ``reference``
    (``hf:FOLDER`` only: the module's weights stay in their files), ``none`` or the path of a state dict. ``with_processor``:
    ``hf:FOLDER`` with its image processor in front. ``nms``: a detector with suppression behind it, ``default`` or thresholds
    such as ``score=0.25,iou=0.7,max=300``.

    Raises:   UserError E601 (unknown or unbuildable source), E602 (package missing), E001 (wrong option), E302 (weights
              that cannot be read).
    """
    kind, name, keywords = parsed(with_kind(spec))
    options = Options(batch, seq, image_size, seed, keywords, weights, dtype, with_processor, nms)
    _check_sizes(kind, options.sizes())
    source = _with_weights(kind, _builder(kind), name, options)
    if nms is None:
        return source
    require("torchvision", "--nms")
    from fx2onnx.sources.suppression import with_suppression

    return with_suppression(source, nms)


def _with_weights(kind: SourceKind, builder: SourceBuilder, name: str, options: Options) -> Source:
    """The source that ``builder`` makes; the weights and the dtype that were asked for are put in here unless the kind does it."""
    from fx2onnx.sources import weight_files

    dtype = weight_files.check_dtype(options.dtype)
    if options.with_processor and kind.prefix != "hf":
        raise UserError(
            "E001", f"--with-processor has no meaning for {kind.prefix}: sources", next="it works for hf:FOLDER"
        )
    if kind.loads_weights:
        return builder.build(name, options)
    if options.weights == "reference":
        raise UserError(
            "E001",
            f"--weights reference has no meaning for {kind.prefix}: sources",
            why="there is no checkpoint folder to refer to",
            next="it works for hf:FOLDER; docs/weights.md shows it for modules of your own",
        )
    source = builder.build(name, options)
    if options.weights not in (None, *WEIGHT_WORDS):
        weight_files.load_state(source.module, Path(str(options.weights)).expanduser())
        source.origin = f"{source.origin.partition(', random')[0]}, weights of {options.weights}"
    source.has_weights = options.weights != "none"
    if dtype is not None:
        weight_files.apply_dtype(source, dtype)
    return source


@public
def names(prefix: str) -> list[str]:
    """All names that the kind ``prefix`` knows, sorted.

    Raises:   UserError E601 for an unknown kind, E602 where its package is missing.
    """
    kind = kind_of(prefix)
    if kind is None:
        fail_unknown("source kind", prefix, prefixes())
    if kind.package is not None and is_as_tabled(prefix, kind.package):
        return list(known_names()[prefix])
    return sorted(_builder(kind).names())


def fail_unknown(what: str, name: str, known: Iterable[str], *, hint: str = "", rest: str = "") -> NoReturn:
    """Raise E601 for ``name``, with the closest of the ``known`` names, each before the ``rest`` of the source."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    steps = [f"did you mean {' or '.join(each + rest for each in close)}?"] if close else []
    elsewhere = [] if name in known else specs_named(name)
    if elsewhere:
        steps.insert(0, f"{' and '.join(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} that name")
    if not close and len(known) <= 20:
        steps.append(f"known: {', '.join(known)}")
    if hint:
        steps.append(hint)
    raise UserError("E601", f"unknown {what} '{name}'", next=steps)


def require(package: str, what: str) -> None:
    """Raise E602 with the pip command unless ``package`` is installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(
            "E602",
            f"{what} needs the package {package}, which is not installed",
            next=[f"pip install {package}", "or all optional model packages at once: pip install 'fx2onnx[zoo]'"],
        )


def _builder(kind: SourceKind) -> SourceBuilder:
    if kind.package is not None:
        require(kind.package, f"{kind.prefix}:")
    plugin = None if kind.prefix in KINDS else plugins.find(plugins.SOURCES, kind.prefix)
    load = partial(importlib.import_module, kind.module)
    return cast(SourceBuilder, load() if plugin is None else plugin.using(load))


def with_kind(spec: str) -> str:
    """``spec``, with its kind in front where it is a folder alone. Raises UserError E601 for a folder of no known kind."""
    body = spec.partition("?")[0]
    if ":" in body or is_file(spec) or not os.path.isdir(Path(body).expanduser()):
        return spec
    for kind, (_, is_one) in FOLDERS.items():
        if is_one(Path(body).expanduser()):
            return f"{kind}:{spec}"
    raise UserError(
        "E601",
        f"the folder '{body}' is of no kind that fx2onnx knows",
        why="it has none of " + "; ".join(f"{marker} ({kind}:)" for kind, (marker, _) in FOLDERS.items()),
        next=["give the folder that save_pretrained wrote, or one inside it", _usage()],
    )


def parsed(spec: str) -> tuple[SourceKind, str, dict[str, object]]:
    """The kind, the name and the keywords of a source. Raises UserError E601."""
    body, _, query = spec.partition("?")
    prefix, colon, name = body.partition(":")
    if prefix != "file" and is_file(spec):
        return KINDS["file"], body, _parse_keywords(spec, query)
    if prefix.endswith(".py") and not name:
        raise UserError("E601", f"'{spec}' names no function", next=_functions_of(prefix))
    if not colon or not name:
        if name == "" and prefix in prefixes():
            raise UserError("E601", f"'{spec}' names no model", next=f"fx2onnx list {prefix}")
        meant = specs_named(body) or close_specs(body)
        module, dot, factory = body.rpartition(".")
        is_module = dot and PathFinder.find_spec(module.partition(".")[0], [os.getcwd(), *sys.path])
        dotted = [f"{module}:{factory}"] if is_module else []
        steps = [f"did you mean {' or '.join(meant or dotted)}?"] if meant or dotted else []
        if os.path.isfile(f"{body}.py"):
            steps = [_functions_of(f"{body}.py")]
        elif body.endswith(".onnx"):
            steps = ["give the model that it was made from; a file alone: fx2onnx run, inspect, lint, diff, optimize"]
        elif not steps:
            steps = [
                "for a checkpoint save the model once, model.save_pretrained('FOLDER'), and write hf:FOLDER: nothing is downloaded"
            ]
        raise UserError("E601", f"'{spec}' is not a model source", why="a source is KIND:NAME", next=[*steps, _usage()])
    kind = kind_of(prefix)
    if kind is not None:
        return kind, name, _parse_keywords(spec, query)
    if _FACTORY_PATTERN.fullmatch(body):
        return FACTORY, body, _parse_keywords(spec, query)
    return fail_unknown("source kind", prefix, prefixes(), hint=_usage())


def _functions_of(path: str) -> str:
    """The next step for a file of Python code: its functions, which are read and not run."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        return f"{path}:FUNCTION, where the file can be read: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return f"write {' or '.join(f'{path}:{name}' for name in names[:8])}" if names else f"write a function: {_RETURNS}"


_RETURNS = "def make(): return module, (example_input,)"


def is_file(spec: str) -> bool:
    """Return whether ``spec`` is ``file:PATH``, or a path that ends as those of saved programs do."""
    body = spec.partition("?")[0]
    prefix = body.partition(":")[0]
    return prefix == "file" or (prefix not in prefixes() and body.endswith(SAVED))


def _usage() -> str:
    return (
        f"write one of {', '.join(f'{prefix}:NAME' for prefix in prefixes())}, package.module:factory, FILE.py:factory"
    )


def _parse_keywords(spec: str, query: str) -> dict[str, object]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UserError(
            "E601", f"cannot read '?{query}' of '{spec}'", why=str(error), next="write ?key=value&key=value"
        ) from error
    return {key: _literal(key, value) for key, value in pairs}


_WORDS = {"true": True, "false": False, "none": None}


def _literal(key: str, text: str) -> object:
    """A Python literal where ``text`` is one, else the text. Raises UserError E601 for one that Python cannot read."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value: object = ast.literal_eval(text)
        return value
    except (ValueError, SyntaxError, TypeError):
        return text
    except (RecursionError, MemoryError) as error:
        raise UserError("E601", f"cannot read the value of '{key}'", why="it is nested too deeply") from error


def _check_sizes(kind: SourceKind, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        flag = f"--{name.replace('_', '-')}"
        if size < 1:
            raise UserError("E001", f"{flag} must be at least 1, not {size}")
        if name not in kind.options:
            raise UserError(
                "E001",
                f"{flag} has no meaning for {kind.prefix}: sources",
                next=f"leave {flag} out; {kind.prefix}: takes {', '.join(sorted(kind.options)) or 'no sizes'}",
            )
