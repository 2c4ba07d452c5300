"""``diffusers:FOLDER``: the components of a pipeline that ``DiffusionPipeline.save_pretrained`` wrote, each a graph or two."""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.files.pipeline_index import INDEX, PREFIX, Config, IndexEntry, PipelineIndex, quiet, read_index
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sizes.expr import Dim, Scalar, evaluate
from fx2onnx.sources.diffusers.rows import DECODE, ENCODE, ROWS, SIZES, ComponentFacts, ComponentMethod
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.by_reference import load_mapped, quiet_loading
from fx2onnx.sources.hf.config import CONFIG, check_config, guarded
from fx2onnx.sources.hf.sample_context import main_dtype
from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import AxisName, Options, Source
from fx2onnx.sources.weight_files import check_dtype, check_files, map_checkpoint

OUT = "out_"
"""The prefix of the name of an output where an input has that name, as diffusers' own ONNX files have it."""
NUMBER = "number"
_DTYPES = {"int64": torch.int64, "bool": torch.bool}


class ComponentCall(torch.nn.Module):
    """``component.method(**inputs)`` with all inputs and outputs by flat names: a member of a dict or a tuple is ``NAME.KEY``."""

    def __init__(self, component: torch.nn.Module, call: ComponentMethod) -> None:
        super().__init__()
        self.component = component
        self.call = call
        self.numbers = {name for name, sizes in call.inputs.items() if sizes.startswith(NUMBER)}
        self.eval()

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        given = {name: value.item() if name in self.numbers else value for name, value in inputs.items()}
        method = self.component if self.call.method == "forward" else getattr(self.component, self.call.method)
        found = _flat_output(method(**_nested(given), **self.call.constants))
        return {OUT + name if name in inputs else name: value for name, value in found.items()}


def _nested(inputs: Mapping[str, object]) -> dict[str, object]:
    """The arguments by name, from flat ones: ``a.key`` is a member of the dict ``a``, ``a.0`` of the tuple ``a``."""
    found: dict[str, object] = {}
    members: dict[str, dict[str, object]] = {}
    for name, value in inputs.items():
        head, dot, rest = name.partition(".")
        if dot:
            members.setdefault(head, {})[rest] = value
        else:
            found[head] = value
    for head, held in members.items():
        inner = _nested(held)
        values, is_sequence = list(inner.values()), "0" in inner
        is_deep = any(isinstance(value, list | tuple | dict) for value in values)
        found[head] = inner if not is_sequence else values if is_deep else tuple(values)
    return found


def _flat_output(result: object) -> dict[str, torch.Tensor]:
    """The tensors of what a component returns, by name."""
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, tuple):
        result = {f"output_{place}": value for place, value in enumerate(result)}
    assert isinstance(result, Mapping)  # outputs of both packages are
    found: dict[str, torch.Tensor] = {}
    for name, value in result.items():
        value = getattr(value, "parameters", value)  # of a distribution: mean and log of the variance
        if isinstance(value, list | tuple):
            found |= {f"{name}.{place}": item for place, item in enumerate(value) if isinstance(item, torch.Tensor)}
        elif isinstance(value, torch.Tensor):
            found[name] = value
    return found


def example(
    call: ComponentMethod, module: torch.nn.Module, sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, AxisName]]]:
    """Inputs of the call, drawn by PyTorch's random numbers, and their dynamic sizes. ``sizes`` replace those of ``SIZES``."""
    known = {**SIZES, **sizes}
    inputs: dict[str, torch.Tensor] = {}
    shapes: dict[str, dict[int, AxisName]] = {}
    limit = _vocabulary(module)
    floating = main_dtype(module)
    for name, text in call.inputs.items():
        words = text.split()
        if words[:1] == [NUMBER]:
            inputs[name], shapes[name] = torch.tensor(int(words[1])), {}
            continue
        dtype = _DTYPES.get(words[0]) if words else None
        places = words if dtype is None else words[1:]
        dims = [_dim(word) for word in places]
        shape = [int(evaluate(dim, known)) for dim in dims]
        inputs[name] = _drawn(name, shape, dtype, limit, floating)
        shapes[name] = {
            axis: word if word.isidentifier() else dim
            for axis, (word, dim) in enumerate(zip(places, dims, strict=True))
            if not isinstance(dim, int)
        }
    return inputs, shapes


def _drawn(name: str, shape: list[int], dtype: torch.dtype | None, limit: int, floating: torch.dtype) -> torch.Tensor:
    if dtype is None:
        # Steps of a scheduler are numbers up to 1000 and more.
        is_time = name.startswith("timestep") and not name.endswith("_cond")
        drawn = torch.rand(shape) * 1000 if is_time else torch.randn(shape)
        return drawn.to(floating)
    if "mask" in name:
        return torch.ones(shape, dtype=dtype)
    return torch.randint(0, limit if name in ("input_ids", "audio_codes") else 1, shape).to(dtype)


def _vocabulary(module: torch.nn.Module) -> int:
    """The number of tokens that a text encoder knows."""
    get = getattr(module, "get_input_embeddings", None)
    try:
        return int(get().num_embeddings) if get is not None else 1
    except (AttributeError, NotImplementedError):
        return 1


def _dim(word: str) -> Scalar:
    """A number, or the size that the word says of names of ``SIZES``."""
    return _evaluated(ast.parse(word, mode="eval").body)


def _evaluated(node: ast.expr) -> Scalar:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            return Dim.symbol(name)
        case ast.BinOp(left, ast.Mult(), right):
            return _evaluated(left) * _evaluated(right)
        case ast.BinOp(left, ast.Add(), right):
            return _evaluated(left) + _evaluated(right)
        case ast.BinOp(left, ast.FloorDiv(), right):
            return _evaluated(left) // _evaluated(right)
    raise ValueError(ast.unparse(node))


_SUFFIXES = {ENCODE: "_encoder", DECODE: "_decoder"}
FRAMES = "num_frames"
_COPIED = (".json", ".txt", ".model", ".jinja")
_NOT_COPIED = (".index.json", MANIFEST)
_LARGEST_VALUE = 4096
"""Elements of a tensor that a pipeline may read from a component itself, such as the mean of its latents."""


def names() -> list[str]:
    """Nothing: folders are not listed."""
    return []


def build(name: str, options: Options) -> Source:
    """The graph ``?component=NAME`` of the pipeline: ``unet``, ``vae_decoder``.

    Raises:   UserError E601 without a component, for an unknown one, and for one whose class has no row.
    """
    asked = str(options.keywords.get("component", ""))
    components = PipelineFolder(Path(name).expanduser(), options).components()
    parts = {stem: part for component in components for stem, part in component.parts().items()}
    if asked not in parts:
        raise UserError(
            "E601",
            f"'{name}' is a pipeline of {len(parts)} graphs, and none is called '{asked}'" if asked else f"'{name}' is a pipeline of {len(parts)} graphs",
            next=[f"all of them: fx2onnx export-folder diffusers:{name} -o FOLDER",
                  f"one of them: diffusers:{name}?component=NAME, which is {', '.join(parts)}"],
        )  # fmt: skip
    return parts[asked]()


class PipelineFolder:
    """A folder with ``model_index.json``, and how its components are made."""

    prefix = PREFIX

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options
        for key in options.keywords:
            if key not in ("component", FRAMES):
                raise UserError("E001", f"diffusers: takes no {key}", next=f"?component=NAME or ?{FRAMES}=NUMBER")
        frames = options.keywords.get(FRAMES, ComponentFacts.frames)
        if type(frames) is not int or frames < 1:
            raise UserError("E001", f"{FRAMES} is {frames!r:.60}", next="give the number of frames of a video")
        self.frames = frames
        self.index: PipelineIndex = read_index(folder)
        self.configs = {entry.name: self._config(entry) for entry in self.index.entries if self._place(entry).is_dir()}

    def _place(self, entry: IndexEntry) -> Path:
        return inside(self.folder, entry.name)

    def _config(self, entry: IndexEntry) -> Config:
        path = inside(self.folder, f"{entry.name}/{CONFIG}")
        if not path.is_file():
            return {}
        stated = read_object(path)
        check_config(stated, str(path))
        return stated

    def configs_and_tokenizers(self) -> list[str]:
        """The files that go with the graphs, by their paths in the folder."""
        return [INDEX, *(name for folder in self.configs for name in small_files(self.folder, folder))]

    def components(self) -> Sequence[PipelineModule]:
        """The components with weights. Raises UserError E302, E601 for one that cannot be exported, before any is."""
        found = []
        with guarded(str(self.folder)):
            for entry in self.index.entries:
                kind = entry.component_class()
                if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
                    continue
                if entry.name not in self.configs:
                    raise UserError(
                        "E302",
                        f"the folder '{self.folder}' has no component {entry.name}",
                        why=f"model_index.json names it, a {entry.class_name}",
                        next="copy the missing folder, or write null for both of its names if the pipeline goes without",
                    )
                if entry.class_name not in ROWS:
                    raise UserError(
                        "E601",
                        f"the component {entry.name} is a {entry.class_name}, whose inputs are not known",
                        why=f"known are {', '.join(sorted(ROWS))}",
                        next="export this module in Python: fx2onnx.export(pipeline." + entry.name + ", ...)",
                    )
                found.append(PipelineModule(self, entry))
        return found


def small_files(folder: Path, name: str = "") -> list[str]:
    """The configs and tokenizer files in the folder ``name`` of ``folder``, by their paths in ``folder``."""
    paths = sorted(inside(folder, name).iterdir() if name else folder.iterdir())
    kept = [path for path in paths if path.name.endswith(_COPIED) and not path.name.endswith(_NOT_COPIED)]
    return [f"{name}/{path.name}" if name else path.name for path in kept if path.is_file()]


@dataclass(frozen=True)
class PipelineModule:
    """A component with weights, which are read when its first part is made."""

    pipeline: PipelineFolder
    entry: IndexEntry

    @functools.cached_property
    def loaded(self) -> tuple[torch.nn.Module, str, list[WeightFile]]:
        """The module in eval mode, where its weights come from, and the files that it refers to."""
        options, place = self.pipeline.options, inside(self.pipeline.folder, self.entry.name)
        dtype, kind = check_dtype(options.dtype), self.entry.component_class()
        what = f"cannot load the component {self.entry.name} from '{place}'"
        with guarded(str(place)), quiet_loading(), quiet(), seeded(options.seed), reported(what):
            files: list[WeightFile] = []
            if options.weights == "none":
                with torch.device("meta"):
                    module, origin = self._made(place), "no weights"
            elif options.weights == "random":
                module, origin = self._made(place), f"random weights, seed {options.seed}"
                move_constants(module, options.seed)
            elif options.weights == "reference":
                if self.entry.library == "transformers":
                    config = kind.config_class.from_pretrained(place, local_files_only=True)
                    module, _, files = load_mapped(kind, place, config, options.dtype)
                    return module.eval().requires_grad_(False), f"weights of {place.name}", files
                checkpoint = map_checkpoint(place)
                module, files, origin = (
                    self._mapped(place, checkpoint.state),
                    checkpoint.files,
                    f"weights of {place.name}",
                )
            elif options.weights is not None:
                step = "random, none or reference; a pipeline has several files of weights"
                raise UserError("E001", f"--weights {options.weights} is not known", next=step)
            else:
                module, origin = self._read(place), f"weights of {place.name}"
                dtype = dtype or torch.float32  # as DiffusionPipeline.from_pretrained
            return (module if dtype is None else module.to(dtype)).eval().requires_grad_(False), origin, files

    def _made(self, place: Path) -> torch.nn.Module:
        kind = self.entry.component_class()
        if self.entry.library == "diffusers":
            made: torch.nn.Module = kind.from_config(kind.load_config(str(place), local_files_only=True))
            return made
        made = kind(kind.config_class.from_pretrained(place, local_files_only=True))
        return made

    def _read(self, place: Path) -> torch.nn.Module:
        """The module with its weights, as ``from_pretrained`` gives it, which renames those of old checkpoints."""
        check_files(place)
        is_safe = any(place.glob("*.safetensors"))
        if is_safe and self.entry.library == "diffusers":
            with contextlib.suppress(UserError):  # no such package as accelerate is needed for it
                return self._mapped(place, map_checkpoint(place).state)
        kind = self.entry.component_class()
        read: torch.nn.Module = kind.from_pretrained(str(place), local_files_only=True, use_safetensors=is_safe)
        return read

    def _mapped(self, place: Path, state: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        with _no_init():
            module = self._made(place)
        missing, unknown = module.load_state_dict(state, strict=False, assign=True)
        if missing or unknown:
            raise UserError(
                "E601",
                f"the weights of '{place}' cannot be referred to",
                why=f"{len(missing)} are missing and {len(unknown)} unknown, the first is {[*missing, *unknown][0]}",
                next="leave out --weights reference",
            )
        return module

    @functools.cached_property
    def calls(self) -> list[ComponentMethod]:
        """The methods that are exported. They depend on the config with its defaults, so that the module is made."""
        config = self.loaded[0].config
        to_dict = getattr(config, "to_dict", None)
        stated: Config = to_dict() if to_dict else dict(cast(Config, config))
        facts = ComponentFacts(
            {"_class_name": self.entry.class_name, **stated}, self.pipeline.configs, self.pipeline.frames
        )
        return ROWS[self.entry.class_name](facts)

    def stem(self, call: ComponentMethod) -> str:
        """The name of the call's file without its suffix."""
        return self.entry.name + _SUFFIXES.get(call.method, "")

    def parts(self) -> dict[str, Callable[[], Source]]:
        """The sources of the component by the name of their file, made when asked for."""
        return {self.stem(call): functools.partial(self._source, call) for call in self.calls}

    def _source(self, call: ComponentMethod) -> Source:
        module, origin, files = self.loaded
        options = self.pipeline.options
        sizes = {"batch": options.batch_or()} | ({} if options.seq is None else {"text_length": options.seq})
        with seeded(options.seed):
            inputs, shapes = example(call, module, sizes)
        return Source(
            self.stem(call),
            ComponentCall(module, call),
            (),
            inputs,
            shapes,
            origin=f"{self.entry.class_name}, {origin}",
            weight_files=files,
            has_weights=options.weights != "none",
        )

    def values(self) -> dict[str, object]:
        """The small tensors of the component itself that its pipeline may read, such as the mean of its latents, as lists."""
        module = self.loaded[0]
        own = {**module._parameters, **module._buffers}
        return {
            name: value.detach().float().tolist()
            for name, value in own.items()
            if value is not None and value.numel() <= _LARGEST_VALUE and value.device.type != "meta"
        }


@contextlib.contextmanager
def _no_init() -> Iterator[None]:
    """Inside, ``torch.nn.init`` leaves memory as it is: nothing of it is touched before the weights take its place."""
    names = [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]
    before = {name: getattr(torch.nn.init, name) for name in names}
    try:
        for name in names:
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield
    finally:
        for name, function in before.items():
            setattr(torch.nn.init, name, function)
