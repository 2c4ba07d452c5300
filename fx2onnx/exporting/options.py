"""``ExportOptions``: what an export is asked to do, as one value from ``fx2onnx.export`` down. Imports no torch, no onnx."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.cache_names import CELLS
from fx2onnx.base.errors import UserError
from fx2onnx.base.opsets import check_opset
from fx2onnx.base.options import CHECKS, INPUTS, OUTPUT, SIZES, option
from fx2onnx.capture.options import CaptureOptions, check_choice, check_kinds
from fx2onnx.files.own_metadata import metadata_of
from fx2onnx.judge import Effort
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import Quantize
from fx2onnx.targets.form import DEFAULT, GENAI, check_fused, chosen_opset, find

if TYPE_CHECKING:
    from fx2onnx.files.safetensors import WeightFile

DEFAULT_OPSET = 20
"""Newest opset whose operators onnxruntime runs at least as fast as their older spellings (benchmarks/)."""

FUSED_OPSET = 23
"""The first that has RMSNormalization whole, which fused forms go on from."""

IN_PLACE_OPSET, FLOAT8_OPSET = 24, 21
"""The first with TensorScatter, which writes into a cache, and from which onnxruntime reads the shape of 8-bit floats."""

_ADAPTER = re.compile(r"[\w-][\w.-]{0,99}")
STATES = ("warn", "error", "drop", "io")
METADATA = ("none", "light", "full")
METADATA_HELP = "Own entry for the file's metadata, repeatable. none: without notes on the origin of nodes."
EXTERNAL_HELP = "Write weights to a file of their own, or into the model. Default: by their size, or as IN has them."
TASK_HELP = "Task of an hf: model, such as masked-lm or text-generation-with-past."

TORCH_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "dump_exported_program": ((False, None), "there is no exported program; profile= and verbose= say what happened"),
    "artifacts_dir": ((".", None), "nothing is written beside the file; profile= takes a path"),
    "fallback": ((False, None), "a capture that fails is tried in another way, unless capture= names one"),
    "do_constant_folding": ((True, None), "optimize=False leaves the graph as it is translated"),
    "operator_export_type": (
        (None,),
        "operators without an ONNX form are an error; custom_translations= gives them one",
    ),
    "autograd_inlining": ((True, None), "what an autograd.Function computes is always in the graph"),
    "strict": ((False, None), "the module runs on tensors without data"),
    "inline": ((True, None), "functions=True makes functions of modules"),
}
"""Keywords of torch.onnx.export that have no meaning here and are taken so that calls keep working: the values that ask for
nothing, and what to do instead of the others, each of which is a warning of the report."""

OTHER_NAMES = {"export_modules_as_functions": "functions"}
"""Keywords of torch.onnx.export, and what they are called here."""

_GONE = dict.fromkeys(
    (
        "onnx_shape_inference", "enable_onnx_checker", "example_outputs", "strip_doc_string", "_retain_param_name",
        "fixed_batch_size", "add_node_names", "aten", "export_type", "propagate", "google_printer", "export_raw_ir",
    ),
    "drop this keyword: it has no meaning here",
) | {"use_external_data_format": "write external_data=", "export_options": "give its fields as keywords, such as dynamic_shapes="}  # fmt: skip
"""Keywords that only earlier releases of torch.onnx take, and what to do with each."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of ``fx2onnx.export``, which says what each of them means. Checked when made. Raises UserError E001."""

    capture: CaptureOptions = field(default_factory=CaptureOptions)
    opset_version: int | None = option(
        None,
        "ONNX opset version. Default: 20 for exports, limited by the target; else that of the file.",
        "--opset",
        panel=OUTPUT,
    )
    target: str | None = option(
        None, "Target runtime, such as onnxruntime-1.19 or openvino (docs/targets.md).", panel=OUTPUT
    )
    fused: bool | None = option(
        None,
        "Use onnxruntime's own operators (com.microsoft). Default: for onnxruntime-genai only.",
        panel=OUTPUT,
    )
    metadata: str = "light"
    properties: Mapping[str, str] | None = option(
        None,
        METADATA_HELP,
        "--metadata",
        panel=OUTPUT,
        kind=list[str] | None,
        metavar="KEY=VALUE",
    )
    """The user's own entries in the metadata of the model."""
    state: str = option(
        "warn",
        "Buffers and inputs that forward changes: warn, error, drop, or io (inputs, and outputs NAME.next).",
        panel=OUTPUT,
    )
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None
    checks: bool = option(True, "Add nodes that fail where data-dependent sizes break a condition.", panel=SIZES)
    optimize: bool = option(True, "Run the graph rewrites.", panel=OUTPUT)
    export_params: bool = True
    weight_files: Sequence[WeightFile] = ()
    quantize: Quantize | None = None
    precision: Precision | None = None
    functions: bool | Sequence[type | str] = option(
        False,
        "Make ONNX functions of the modules of this class, repeatable. all: of every class (docs/functions.md).",
        panel=OUTPUT,
        kind=list[str] | None,
        metavar="CLASS",
    )
    keep_weights: bool = False
    external_data: bool | None = option(None, EXTERNAL_HELP, panel=OUTPUT)
    durable: bool = False
    verify: bool = False
    effort: Effort = option(
        "normal",
        "How many inputs are compared: quick, normal (the default), or full, which leaves none out.",
        panel=CHECKS,
        kind=Effort | None,
    )
    attest: bool = option(
        False, "Write an in-toto statement of digests and checks beside the file (docs/attestation.md).", panel=CHECKS
    )
    profile: bool | str | os.PathLike[str] = False
    report: bool | str | os.PathLike[str] = False
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None
    """onnxscript functions by overload, as torch.onnx.export takes them."""
    custom_opsets: Mapping[str, int] = field(default_factory=dict)
    """The versions of operator sets beside ONNX's own, by domain."""
    verbose: bool | None = None
    keep_initializers_as_inputs: bool = False
    ignored: tuple[str, ...] = ()
    """The requests with keywords of ``TORCH_ONLY``, which have no effect."""

    def __post_init__(self) -> None:
        check_choice("state", self.state, STATES)
        check_choice("metadata", self.metadata, METADATA)
        if not isinstance(self.functions, bool | list | tuple | set | frozenset):
            raise UserError("E001", f"functions is {self.functions!r:.60}", next="give True, or a list of classes")
        if self.opset_version is not None:
            check_opset(self.opset_version)
        if self.target is not None:
            chosen_opset(self.target, self.opset_version, DEFAULT_OPSET)
        if self.fused:
            check_fused(self.target or DEFAULT)

    @classmethod
    def of(cls, *, capture: str = "auto", training: Any = None, **keywords: Any) -> ExportOptions:
        """The options from keywords as ``fx2onnx.export`` takes them. Raises UserError E001 for one that nobody knows."""
        for theirs, ours in OTHER_NAMES.items():
            value = keywords.pop(theirs, None)
            if value and not keywords.get(ours):
                keywords[ours] = value
        refuse_unknown("export", set(keywords) - set(TORCH_ONLY), _OWN | _OF_CAPTURE)
        of_capture = {name: value for name, value in keywords.items() if name in _OF_CAPTURE}
        own = {name: value for name, value in keywords.items() if name in _OWN}
        check_kinds(own, _FLAGS, _TABLES)
        own["custom_opsets"] = dict(own.get("custom_opsets") or {})
        own["quantize"] = Quantize.of(own.get("quantize"))
        own["metadata"], own["properties"] = metadata_of(own.get("metadata", "light"), "light", METADATA)
        own["ignored"] = tuple(_ignored(keywords))
        return cls(CaptureOptions(strategy=capture, training=_mode(training), **of_capture), **own)

    @property
    def opset(self) -> int:
        """The opset that the file has."""
        usual = FUSED_OPSET if self.is_fused else DEFAULT_OPSET
        if self.quantize is not None:
            usual = max(usual, self.quantize.least_opset)
        return chosen_opset(self.target, self.opset_version, usual)

    @property
    def is_for_genai(self) -> bool:
        return self.target is not None and find(self.target).runtime == GENAI

    @property
    def is_fused(self) -> bool:
        """True if the file has onnxruntime's own operators."""
        return self.is_for_genai if self.fused is None else self.fused


ONNX_GENAI = "onnx-genai"
LAYOUTS = ("plain", "transformers.js", ONNX_GENAI)


@dataclass(frozen=True)
class FolderOptions:
    """The options of ``fx2onnx.export_folder``. ``source`` are those of the source, as ``fx2onnx.sources.resolve`` takes them."""

    task: str = option("text-generation-with-past", TASK_HELP, panel=INPUTS)
    cache: str = option(
        "dynamic",
        "Key-value cache: dynamic, static (of a fixed size, opset 24), or paged.",
        panel=OUTPUT,
    )
    kv: str | None = option(
        None,
        "Cells of the key-value cache: int8, fp8, or with constant scales int8:head, int8:channel, ...",
        panel=OUTPUT,
    )
    kv_calibration: Any = option(
        None,
        "Prompts (input_ids) for the constant scales and the error of --kv. Default: random tokens.",
        panel=OUTPUT,
        kind=str,
        repr=False,
        metavar="FILE.npz",
    )
    drafter: str | None = option(
        None,
        "mtp: with the model's own head that drafts tokens, for generate --use-mtp; or the folder of an EAGLE-3 drafter.",
        panel=OUTPUT,
    )
    logits: str = option("all", "Positions with logits: all or last.", panel=OUTPUT)
    adapters: Mapping[str, Any] | Sequence[str] = option(
        (),
        "A LoRA adapter of PEFT that generate can switch to by its name, repeatable.",
        panel=OUTPUT,
        kind=list[str],
        metavar="NAME=FOLDER",
    )
    package: bool = option(
        False, "Write manifest.json: the folder is a model package of onnxruntime 1.32.", panel=OUTPUT
    )
    layout: str = option(
        "plain",
        "plain, transformers.js: the graph in onnx/, by its name there, or onnx-genai: with inference_metadata.json.",
        panel=OUTPUT,
    )
    export: ExportOptions = field(default_factory=ExportOptions)
    engines: Sequence[str] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("layout", self.layout, LAYOUTS)
        other = {
            "--package": self.package,
            "--adapters": bool(self.adapters),
            "--weights reference": self.source.get("weights") == "reference",
            f"--target {self.export.target}": self.export.is_for_genai,
            f"--kv {self.kv}": self.kv is not None,
            f"--cache {self.cache}": self.cache != "dynamic",
        }
        wrong = next((name for name, is_asked in other.items() if is_asked), None)
        if self.layout != LAYOUTS[0] and wrong:
            raise UserError(
                "E001", f"--layout {self.layout} and {wrong} exclude each other", next="leave out one of both"
            )

    @property
    def adapter_folders(self) -> dict[str, Path]:
        """The folders of ``adapters`` by name. Raises UserError E001 for a name that is no file's, or a task that has none."""
        given = self.adapters or ()
        pairs = given.items() if isinstance(given, Mapping) else [text.partition("=")[::2] for text in given]
        folders = {str(name): Path(folder).expanduser() for name, folder in pairs}
        wrong = next((name for name, folder in pairs if not _ADAPTER.fullmatch(str(name)) or not str(folder)), None)
        if wrong is not None or len(folders) < len(pairs):
            why = (
                "a name is given twice"
                if wrong is None
                else f"{wrong!r:.60} is no name of letters, digits, - and _ with a folder"
            )
            raise UserError("E001", "cannot read the adapters", why=why, next="--adapters NAME=FOLDER")
        if folders and not self.task.endswith("-with-past"):
            step = f"--task {self.task}-with-past, or merge one: hf:FOLDER?adapter=ADAPTER"
            raise UserError("E001", f"--adapters has no meaning for the task {self.task}", next=step)
        return folders

    def form(self, cache: str) -> dict[str, Any]:
        """The options of ``decoding.parts.assemble`` beside the source's; ``cache`` is ``cache_form``. Raises UserError E001, E302."""
        return {"cache": cache, "prompts": self.prompts, "drafter": self._drafter, "logits": self.logits}

    @property
    def _drafter(self) -> str | None:
        """``drafter``. Raises UserError E001 where options exclude each other."""
        if self.drafter is None:
            return None
        is_path = isinstance(self.drafter, str | os.PathLike)
        if self.drafter != "mtp" and not (is_path and os.path.isdir(os.path.expanduser(self.drafter))):
            step = "--drafter mtp, or the folder of an EAGLE-3 drafter"
            raise UserError("E001", f"--drafter {self.drafter!r:.60} is neither mtp nor a folder", next=step)
        other = "--logits last" if self.logits == "last" else ""
        other = f"--target {self.export.target}" if self.export.is_for_genai else other
        if not self.task.endswith("-with-past"):
            other = f"--task {self.task}"
        if other:
            raise UserError("E001", f"--drafter and {other} exclude each other", next="leave out one of both")
        return self.drafter

    @property
    def with_opset(self) -> ExportOptions:
        """``export`` with the opset that the cache needs. Raises UserError E202 where another is asked for."""
        asked, least = self.export, IN_PLACE_OPSET if self.cache == "static" else 0
        least = FLOAT8_OPSET if (self.kv or "").startswith("fp8") else least
        if least and asked.opset_version is None:
            asked = replace(asked, opset_version=chosen_opset(asked.target, None, least))
        if asked.opset < least == FLOAT8_OPSET:
            why = "onnxruntime reads the shape of 8-bit floats from there on"
            raise UserError("E202", f"--kv {self.kv} needs opset {least}", why=why, next="--kv int8")
        return asked

    @property
    def cells(self) -> dict[str, str | None]:
        """The options of a cache in 8 bits, as the folder's manifest states them."""
        is_file = isinstance(self.kv_calibration, str | os.PathLike)
        return {"kv": self.kv, "kv_calibration": os.fspath(self.kv_calibration) if is_file else None}

    @property
    def prompts(self) -> Mapping[str, Any] | None:
        """The arrays of ``kv_calibration``. Raises UserError E302 for a file that is none, E001 for another thing."""
        given = self.kv_calibration
        if given is None or isinstance(given, Mapping):
            return given
        if not isinstance(given, str | os.PathLike):
            what = f"kv_calibration is a {type(given).__name__}"
            raise UserError("E001", what, next="give an .npz file or a dict of arrays")
        from fx2onnx.quantize.calibration import loaded

        return loaded(os.fspath(given))

    @property
    def cache_form(self) -> str:
        """The form of the cache: ``cache``, ``grouped`` for fused forms, or what ``kv`` asks for. Raises UserError E001 where
        options exclude each other.
        """
        if self.export.is_for_genai and self.cache != "dynamic":
            what = f"--target {self.export.target} and --cache {self.cache} exclude each other"
            raise UserError("E001", what, next="leave out one of both")
        form = "grouped" if self.export.is_fused and self.cache == "dynamic" else self.cache
        if self.kv is None and self.kv_calibration is not None:
            raise UserError("E001", "--kv-calibration is for a cache in 8 bits", next="--kv int8:channel")
        if self.kv is None:
            return form
        check_choice("kv", self.kv, CELLS)
        fused = f"--target {self.export.target}" if self.export.is_for_genai else "--fused"
        other = {"static": "--cache static", "paged": "--cache paged", "grouped": fused}.get(form, "")
        if not self.task.endswith("-with-past"):
            other = f"--task {self.task}"
        if other:
            raise UserError("E001", f"--kv and {other} exclude each other", next=f"leave out {other} or --kv")
        return self.kv


_KINDS = {found.name: str(found.type) for found in fields(ExportOptions)}
_OWN = frozenset(_KINDS) - {"capture", "keep_weights", "ignored", "properties"}
_FLAGS = frozenset(name for name, kind in _KINDS.items() if kind in ("bool", "bool | None"))
_TABLES = frozenset(name for name, kind in _KINDS.items() if kind.startswith("Mapping"))
_OF_CAPTURE = frozenset(found.name for found in fields(CaptureOptions)) - {"strategy", "training", "gradients"}


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise E001 for a keyword that a public function does not have."""
    unknown = min({*given} - {*known}, default=None)
    if unknown is None:
        return
    meant = [f"did you mean {name}?" for name in difflib.get_close_matches(unknown, sorted(known), 1, 0.5)]
    steps = [_GONE[unknown]] if unknown in _GONE else [*_in_group(unknown), *meant, f"see help(fx2onnx.{function})"]
    raise UserError("E001", f"{function} has no argument {unknown!r}", next=steps)


def _in_group(name: str) -> list[str]:
    """The step where ``name`` is a field of the object that one of the options takes."""
    for group, keyword, usual in ((Quantize, "quantize", "int8"), (Precision, "dtype", "float16")):
        if any(found.name == name for found in fields(group)):
            return [f"{keyword}=fx2onnx.{group.__name__}({usual!r}, {name}=...)"]
    return []


def _mode(flag: Any) -> bool | None:
    """Return whether to export in training mode, from a torch.onnx.TrainingMode, its name, a bool or None; None: as the module is."""
    name = flag if isinstance(flag, str) else getattr(flag, "name", None)
    if name is None and (flag is None or isinstance(flag, bool)):
        return bool(flag)
    if name not in _MODES:
        raise UserError(
            "E001",
            f"training is {flag!r:.80}",
            next="give True, False, a torch.onnx.TrainingMode, or fx2onnx.Training(loss=...) for a graph that trains",
        )
    return _MODES[name]


_MODES = {"EVAL": False, "TRAINING": True, "PRESERVE": None}


def _ignored(keywords: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each keyword that asks for something and has no effect."""
    for name, (nothing, instead) in TORCH_ONLY.items():
        value = keywords.get(name)
        if name in keywords and value not in nothing and getattr(value, "name", "") != "ONNX":
            yield f"{name}={value!r} has no effect: {instead}"
