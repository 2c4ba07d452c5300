"""``hf:FOLDER_OR_MODEL_TYPE``: any transformers model, by its own config and auto mappings.

Code that comes with a checkpoint is never run and nothing is downloaded: ``fx2onnx.sources.hf.config``.
"""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf import adapters, gguf, gguf_file
from fx2onnx.sources.hf.by_reference import LOADING, load_mapped, quiet_loading, stated_quantization
from fx2onnx.sources.hf.config import (
    ADAPTER_CONFIG,
    CONFIG,
    check_config,
    guarded,
    is_unpackable,
    read_config,
    unpack_quantized,
    without_foreign_code,
)
from fx2onnx.sources.hf.gguf_file import GgufFile
from fx2onnx.sources.hf.image_processor import with_image_processor
from fx2onnx.sources.hf.inputs import baked_inputs, sample_inputs
from fx2onnx.sources.hf.sample_context import main_dtype, set_use_cache, with_sub_configs
from fx2onnx.sources.hf.sound_processor import SOUNDS, with_sound_processor
from fx2onnx.sources.hf.tasks import TASKS, AutoMapping, every_task, mapping_of
from fx2onnx.sources.hf.transformers_types import Config, LoadingNotes, Model
from fx2onnx.sources.registry import fail_unknown
from fx2onnx.sources.seeding import check_memory, move_constants, seeded
from fx2onnx.sources.source import Options, Source
from fx2onnx.sources.torchvision import check_torchvision
from fx2onnx.sources.weight_files import cast_inputs, check_dtype, check_files

_MAPPING = re.compile(r"MODEL_(FOR_\w+_)?MAPPING_NAMES$")
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def names() -> list[str]:
    """All model types that transformers knows, without the parts of models that it can only build inside a whole one."""
    auto = _transformers().models.auto
    whole = set().union(
        *(getattr(auto.modeling_auto, name) for name in vars(auto.modeling_auto) if _MAPPING.match(name))
    )
    return [name for name in auto.configuration_auto.CONFIG_MAPPING_NAMES if name in whole]


def check_task(task: str, also: Iterable[str] = ()) -> None:
    """Raise UserError E601 for a word that is no task; ``also`` are others to name in the advice."""
    mapping_of(_transformers(), task, also)


def build(name: str, options: Options) -> Source:
    """The checkpoint in the folder ``name``, or a model of type ``name`` with default config and random weights.

    ``?task=WORD`` chooses the model class (``hf/tasks.py``), ``?adapter=FOLDER`` merges a LoRA adapter of PEFT, other ``?key=value`` pairs override config fields. The cache is
    off, so that outputs are those of a plain forward. Batch and sequence are dynamic.

    Raises:   UserError E601: no such folder or type, a config that cannot be read, an unknown task or field.
    """
    transformers = _transformers()
    with guarded(name):
        return _build(transformers, name, options)


def _build(transformers: ModuleType, name: str, options: Options) -> Source:
    keywords = dict(options.keywords)
    word, adapter = keywords.pop("task", None), keywords.pop("adapter", None)
    task = None if word is None else str(word)
    if task is not None:
        mapping_of(transformers, task)
    check_config(keywords, f"hf:{name}")
    folder = Path(name).expanduser()
    stored: Path | GgufFile | None = None
    path = gguf_file.file_of(folder) if os.path.exists(folder) else None
    if path is not None:
        stored = gguf_file.opened(path)
        config, label = with_fields(gguf.config_of(stored), keywords, name), path.stem
    elif os.path.isdir(folder):  # which takes any text for a path
        config = _config_of_folder(transformers, folder, keywords)
        has_weights = any(any(folder.glob(pattern)) for pattern in _WEIGHT_FILES)
        stored, label = folder if has_weights else None, folder.resolve().name
        if not has_weights and options.weights is None:
            raise UserError(
                "E302",
                f"the folder '{folder}' has no weights",
                why="neither *.safetensors nor pytorch_model*.bin is in it",
                next=["copy the missing files into the folder", "--weights random draws some"],
            )
    else:
        config = _config_of_type(transformers, name, keywords)
        label = name
    model_class = _model_class(transformers, config, task)
    config = config_for(model_class, config)
    set_use_cache(config, False)
    with seeded(options.seed):
        module, weights, files = _module(model_class, config, stored, name, options)
        if adapter is not None:
            weights += _adapted(module, Path(str(adapter)).expanduser(), name, options)
        module.eval()
        with reported(f"no sample inputs can be made by the config of hf:{name}"):
            kwargs, dynamic_shapes = sample_inputs(module, options)
    dtype = main_dtype(module)
    kwargs = {argument: cast_inputs(value, dtype) for argument, value in kwargs.items()}
    origin = f"transformers {transformers.__version__}, {model_class.__name__}, {weights}"
    source = Source(
        label,
        module,
        (),
        kwargs,
        dynamic_shapes,
        origin=origin,
        weight_files=files,
        has_weights=options.weights != "none",
        bake=baked_inputs(kwargs),
        data_branches="if",
    )
    if not options.with_processor:
        return source
    has_sound = any(name in source.kwargs for name in SOUNDS)
    return (with_sound_processor if has_sound else with_image_processor)(source, folder)


def _adapted(module: Model, folder: Path, name: str, options: Options) -> str:
    """Merge the adapter; what to say of it."""
    if options.weights in ("none", "reference"):
        raise UserError(
            "E001",
            f"--weights {options.weights} does not go with hf:{name}?adapter=",
            why="an adapter is added to the numbers of the weights",
            next="leave out one of the two",
        )
    adapters.merge(module, folder)
    return f", adapter {folder.resolve().name}"


def _module(
    model_class: type[Model], config: Config, folder: Path | GgufFile | None, name: str, options: Options
) -> tuple[Model, str, Sequence[WeightFile]]:
    """The module with the weights that ``options.weights`` asks for, where they come from, and the files that it refers to.

    ``folder`` is None where there are none to load.
    """
    dtype = check_dtype(options.dtype)
    words = {None: folder, "reference": folder, "random": None, "none": None}
    source = words[options.weights] if options.weights in words else Path(str(options.weights)).expanduser()
    if options.weights == "reference" and folder is None:
        raise UserError(
            "E001",
            f"--weights reference: hf:{name} has no weights to refer to",
            next="give a folder that model.save_pretrained(FOLDER) wrote",
        )
    if options.weights == "none":
        with torch.device("meta"):
            return _create(model_class, config, name, check=False), "no weights", ()
    if source is None:
        module = _create(model_class, config, name)
        move_constants(module, options.seed)
        return module if dtype is None else module.to(dtype), f"random weights, seed {options.seed}", ()
    by_reference = options.weights == "reference"
    module, files = _load(model_class, source, config, options.dtype, by_reference=by_reference or source != folder)
    place = source.path if isinstance(source, GgufFile) else source.resolve()
    return module, f"weights of {place.name}", files if by_reference else ()


def _transformers() -> ModuleType:
    check_torchvision()
    for name in ("configuration_auto", "modeling_auto"):
        importlib.import_module(f"transformers.models.auto.{name}")
    return importlib.import_module("transformers")


def _config_of_folder(transformers: ModuleType, folder: Path, keywords: Mapping[str, object]) -> Config:
    if not (folder / CONFIG).exists():
        step = "give a folder that model.save_pretrained(FOLDER) wrote"
        if (folder / ADAPTER_CONFIG).exists():
            base = read_object(inside(folder, ADAPTER_CONFIG)).get("base_model_name_or_path")
            step = f"it is an adapter: hf:BASE?adapter={folder}, BASE the folder of the model that it was trained on"
            step += f", {base}" if base else ""
        raise UserError("E601", f"the folder '{folder}' has no {CONFIG}", next=step)
    stated = read_config(folder)
    if "auto_map" in stated and stated.get("model_type") not in names():
        raise UserError(
            "E601",
            f"the checkpoint '{folder}' brings its own model code, which fx2onnx does not run",
            next="build the model in a factory of your own: fx2onnx export package.module:factory",
        )
    with reported(f"cannot read the config '{folder / CONFIG}'", text=_telling_line):
        config: Config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return without_foreign_code(with_fields(config, keywords, str(folder)))


_LOCAL = "hf: reads local folders only and downloads nothing"
_SAVE = "save the model once: model.save_pretrained(FOLDER)"


def _config_of_type(transformers: ModuleType, name: str, keywords: Mapping[str, object]) -> Config:
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if name not in mapping:
        cached = _cached(name)
        if cached or "/" in name or name.startswith((".", "~")):
            raise UserError("E601", f"there is no folder '{name}'", why=_LOCAL, next=cached or _SAVE)
        fail_unknown("model type or folder", name, names(), hint=f"fx2onnx list hf; for a checkpoint, {_SAVE}")
    with reported(f"hf:{name} has no config with {dict(keywords) or 'its defaults'}", text=_telling_line):
        _check_fields(mapping[name](), keywords, name)
        config: Config = mapping[name](**keywords)  # not set afterwards: some fields are computed from others
        return config


def _cached(name: str) -> str:
    """The step that takes a model of Hugging Face's local cache, where ``name`` is one."""
    constants = importlib.import_module("huggingface_hub.constants")
    entry = os.path.join(constants.HF_HUB_CACHE, "models--" + name.replace("/", "--"))
    found = glob.glob(os.path.join(glob.escape(entry), "snapshots", "*", CONFIG))
    newest = max(found, key=os.path.getmtime, default="")
    return f"it is in Hugging Face's cache: hf:{os.path.dirname(newest)}" if newest else ""


def with_fields(config: Config, keywords: Mapping[str, object], name: str) -> Config:
    """``config`` with other values in some of its fields. Raises UserError E601 for a field that it lacks."""
    _check_fields(config, keywords, name)
    for key, value in keywords.items():
        setattr(config, key, value)
    return config


def _check_fields(config: Config, keywords: Mapping[str, object], name: str) -> None:
    for key in keywords:
        if not hasattr(config, key):
            fail_unknown(f"config field of hf:{name}", key, config.to_dict())


def _model_class(transformers: ModuleType, config: Config, task: str | None) -> type[Model]:
    """The class that the checkpoint or the task names, else that of the first mapping that knows the config."""
    architectures = [name for name in getattr(config, "architectures", None) or () if isinstance(name, str)]
    if task is None and architectures:
        named = getattr(transformers, architectures[0], None)
        if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
            return named
    auto = transformers.models.auto.modeling_auto
    every: dict[str, AutoMapping] = {word: getattr(auto, name) for word, name in every_task(auto).items()}
    for mapping in [mapping_of(transformers, task)] if task is not None else every.values():
        if type(config) in mapping:
            fitting_class = mapping[type(config)]
            return fitting_class if isinstance(fitting_class, type) else fitting_class[0]
    for name in architectures:  # a part of a model, saved alone, is known by its class only
        if task is not None and name in mapping_of(transformers, task)._model_mapping.values():
            part: type[Model] = getattr(transformers, name)
            return part
    fitting = [word for word, mapping in every.items() if type(config) in mapping]
    raise UserError(
        "E601",
        f"transformers has no {task or 'known'} model for the type {config.model_type}",
        next=f"tasks of this type: {', '.join(fitting)}" if fitting else "",
    )


def config_for(model_class: type[Model], config: Config) -> Config:
    """The part of a config with several that ``model_class`` is built from, as transformers' auto classes choose it."""
    text_class = getattr(config, "sub_configs", {}).get("text_config")
    wanted = getattr(model_class, "config_class", None)
    if text_class is not None and wanted is text_class:
        return config.get_text_config()
    if wanted is None or isinstance(config, wanted):
        return config
    return next((part for part in with_sub_configs(config) if isinstance(part, wanted)), config)


def _create(model_class: type[Model], config: Config, name: str, *, check: bool = True) -> Model:
    advice = f"make it smaller by config fields: hf:{name}?num_hidden_layers=2 (hidden_size, vocab_size, ...)"
    with reported(f"hf:{name} cannot be built from its config"):
        try:
            if check:
                check_memory(f"hf:{name}", lambda: model_class(config), advice)
            return model_class(config)
        except ImportError as error:
            wanted = re.search(r"requires the (\S+) library", str(error))
            package = wanted[1] if wanted else error.name or "a package"
            raise UserError(
                "E602", f"hf:{name} needs {package}, which is not installed", next=f"pip install {package}"
            ) from error


def _load(
    model_class: type[Model], place: Path | GgufFile, config: Config, dtype: str | None, *, by_reference: bool
) -> tuple[Model, Sequence[WeightFile]]:
    """The module with the weights of a folder or, mapped, of a folder or a file; and the files that are mapped.

    FP8 whose numbers cannot stay as they are (stacked experts) is made plain by transformers, if no file is referred to.
    """
    if isinstance(place, GgufFile):
        with reported(f"cannot load the weights of '{place.path}'", text=_telling_line), quiet_loading():
            module, notes, files = gguf.load(model_class, place, config, dtype, by_reference=by_reference)
        _check_fit(notes, place.path, model_class)
        return module, files
    is_packed = stated_quantization(config) is not None
    try:
        return _loaded(model_class, place, config, dtype, by_reference=by_reference, is_packed=is_packed)
    except UserError as error:
        if not is_packed or by_reference or error.code != "E601" or not is_unpackable(config):
            raise
    return _loaded(model_class, place, config, dtype, by_reference=False, is_packed=False)


def _loaded(
    model_class: type[Model], place: Path, config: Config, dtype: str | None, *, by_reference: bool, is_packed: bool
) -> tuple[Model, Sequence[WeightFile]]:
    files: Sequence[WeightFile] = ()
    if not is_packed:
        unpack_quantized(config, place)
    with (
        reported(f"cannot load the weights of '{place}' into {model_class.__name__}", text=_telling_line),
        quiet_loading(),
    ):
        if by_reference or is_packed:
            module, notes, files = load_mapped(model_class, place, config, dtype)
        else:
            check_files(place)
            module, notes = model_class.from_pretrained(
                place,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                **LOADING,
                **({} if dtype is None else {"dtype": dtype}),
            )
    _check_fit(notes, place, model_class)
    return module, files


def _check_fit(notes: LoadingNotes, place: Path, model_class: type[Model]) -> None:
    mismatched = sorted(notes.get("mismatched_keys", ()))
    if mismatched:
        name, stored, expected = mismatched[0]
        raise UserError(
            "E601",
            f"the weights of '{place}' do not fit its config",
            why=f"{len(mismatched)} differ in shape, the first is {name}: {list(stored)} in the file, "
            f"{list(expected)} by config.json",
            next="restore the config.json that belongs to the weights",
        )
    missing = sorted(notes.get("missing_keys", ()))
    if missing:
        raise UserError(
            "E601",
            f"the checkpoint '{place}' lacks weights of {model_class.__name__}",
            why=f"{len(missing)} missing, the first is {missing[0]}",
            next="choose the task that the checkpoint was saved for: hf:FOLDER?task=WORD, one of " + ", ".join(TASKS),
        )


def _telling_line(error: BaseException) -> str:
    """The first line that says more than that something failed."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), lines[0] if lines else "")[:200]
