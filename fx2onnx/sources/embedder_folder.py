"""The folder of a sentence-transformers model: what its files say, and the same folder with an ONNX file instead of weights.

Nothing of the package is imported, and code that comes with the folder is never run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from fx2onnx.base.errors import UserError

MODULES = "modules.json"
CONFIG = "config.json"
PREFIX = "sentence-transformers"
_PACKAGE_CONFIG = "config_sentence_transformers.json"
_TRANSFORMER_CONFIG = "sentence_bert_config.json"
_CLASSES = ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder")
_SCORING = ("sentence_transformers", "sbert_ce_default_activation_function")
_WEIGHTS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin*",
    "tf_model.h5",
    "flax_model.msgpack",
    "*.onnx*",
)
_BACKENDS = ("onnx", "openvino")
_OWN_CODE = "the folder brings code of its own, which fx2onnx does not run"
_BY_FACTORY = "build the model in a factory of your own: fx2onnx export package.module:factory"


def is_embedder(folder: Path) -> bool:
    """Return whether the package wrote the folder; before its version 5.4 a CrossEncoder had no list of modules."""
    return (folder / MODULES).exists() or any(key in _read_object(folder / CONFIG) for key in _SCORING)


def class_of(folder: Path) -> str:
    """The package's class that the folder is of. Raises UserError E601 (not a folder of the package, own code), E302."""
    if not os.path.isdir(folder):
        raise UserError(
            "E601",
            f"there is no folder '{folder}'",
            why=f"{PREFIX}: reads local folders only and downloads nothing",
            next="save the model once: model.save_pretrained(FOLDER)",
        )
    if not is_embedder(folder):
        raise UserError(
            "E601",
            f"the folder '{folder}' is no model of {PREFIX}",
            why=f"it has neither {MODULES} nor a {CONFIG} with the activation of a CrossEncoder",
            next=["give a folder that model.save_pretrained(FOLDER) wrote", f"a transformers model: hf:{folder}"],
        )
    for entry in _modules(folder):
        _check_module(folder, entry)
    stated, config = _read_object(folder / _PACKAGE_CONFIG), _read_object(folder / CONFIG)
    if "auto_map" in config:
        raise UserError("E601", f"{_OWN_CODE}: auto_map of '{folder / CONFIG}'", next=_BY_FACTORY)
    inner = config.get("sentence_transformers")
    for place in (stated, config, inner if isinstance(inner, dict) else {}):
        _check_functions(place, ("activation_fn", "sbert_ce_default_activation_function"), folder)
    kind = stated.get("model_type", _CLASSES[0]) if (folder / MODULES).exists() else "CrossEncoder"
    if kind not in _CLASSES:
        raise UserError("E601", f"'{folder / _PACKAGE_CONFIG}' says model_type {kind!r:.60}", next=", ".join(_CLASSES))
    return str(kind)


def modalities(folder: Path) -> list[str]:
    """The kinds of input that the folder states for its transformer, those that several kinds are mixed in left out."""
    stated = _read_object(_transformer_folder(folder) / _TRANSFORMER_CONFIG).get("modality_config")
    legacy = any(str(entry.get("type")).endswith("CLIPModel") for entry in _modules(folder))
    words = list(stated) if isinstance(stated, dict) else ["text", "image"] if legacy else ["text"]
    return [word for word in words if word.isalpha() and word != "message"]


def onnx_path(folder: Path, target: Path, modality: str) -> Path:
    """The path of the ONNX file in ``target``: the first modality's is the one that the package's own ONNX backend
    reads."""
    file = "model.onnx" if modality == modalities(folder)[0] else f"model_{modality}.onnx"
    return target / _transformer_folder(folder).relative_to(folder) / "onnx" / file


def check_copy(folder: Path, target: Path) -> None:
    """Raise UserError E301 where a file of ``target`` is another than that of ``folder``, which would replace it."""
    for path in _copied(folder, target):
        place = target / path.relative_to(folder)
        if place.exists() and (not place.is_file() or place.read_bytes() != path.read_bytes()):
            raise UserError(
                "E301",
                f"cannot write '{place}'",
                why="another file of that name is there, which no export wrote",
                next="export into an empty folder",
            )


def copy(folder: Path, target: Path) -> None:
    """Copy everything but the transformer's weights: configs, tokenizers, the small modules. Raises OSError."""
    for path in _copied(folder, target):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _copied(folder: Path, target: Path) -> Iterator[Path]:
    if target.resolve() == folder.resolve():
        return
    heavy = _transformer_folder(folder)
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_ours = (
            any(part in _BACKENDS or part.startswith(".") for part in parts)
            or target.resolve() in path.resolve().parents
        )
        is_weight = path.parent == heavy and any(path.match(pattern) for pattern in _WEIGHTS)
        if path.is_file() and not is_ours and not is_weight:
            yield path


def _transformer_folder(folder: Path) -> Path:
    return folder / next((entry["path"] for entry in _modules(folder)), "")


def _modules(folder: Path) -> list[dict[str, str]]:
    """The entries of the list of modules. Raises UserError E302 where it is none."""
    if not (folder / MODULES).exists():
        return []
    listed = _read(folder / MODULES)
    keys = ("type", "path")
    if not isinstance(listed, list) or not listed:
        raise UserError("E302", f"cannot read '{folder / MODULES}'", why="it is no list of modules")
    for entry in listed:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in keys):
            raise UserError("E302", f"cannot read '{folder / MODULES}'", why="a module has no type or no path")
        if Path(entry["path"]).is_absolute() or ".." in Path(entry["path"]).parts:
            raise UserError("E302", f"'{entry['path']}' leads out of the folder '{folder}'", why=f"{MODULES} names it")
    return cast(list[dict[str, str]], listed)


def _check_module(folder: Path, entry: dict[str, str]) -> None:
    """Raise UserError E601 for a module that is not the package's own, E302 for one whose folder is missing."""
    if not entry["type"].startswith("sentence_transformers."):
        raise UserError("E601", f"{_OWN_CODE}: {entry['type']}", why=f"{MODULES} names it", next=_BY_FACTORY)
    place, word = folder / entry["path"], entry["type"].rsplit(".", 1)[-1]
    if not place.is_dir() and word != "Normalize":  # older versions saved it without a file
        raise UserError(
            "E302",
            f"the folder '{folder}' lacks the module {word}",
            why=f"{MODULES} says that it lies in '{entry['path']}', which is not there",
            next="copy the missing folder",
        )
    if entry["path"]:
        _check_functions(_read_object(place / CONFIG), ("activation_function",), folder)


def _check_functions(settings: dict[str, object], keys: tuple[str, ...], folder: Path) -> None:
    """Raise UserError E601 for a function that is not torch's: the package would take another one instead of it."""
    for key in keys:
        value = settings.get(key)
        if isinstance(value, str) and "." in value and not value.startswith("torch."):
            raise UserError("E601", f"{_OWN_CODE}: {value}", why=f"'{folder}' names it as {key}", next=_BY_FACTORY)


def _read_object(path: Path) -> dict[str, object]:
    value = _read(path) if path.exists() else {}
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        raise UserError("E302", f"cannot read '{path}'", why=str(cause)) from cause
