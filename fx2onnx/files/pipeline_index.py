"""Sources of several graphs: ``model_index.json`` names the components of a diffusers pipeline, each a class and a folder; models of
transformers that are called part by part are known by their class.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object

INDEX = "model_index.json"
ConfigValue: TypeAlias = Any
"""A value of a component's config, as JSON has it."""
Config: TypeAlias = Mapping[str, ConfigValue]


@dataclass(frozen=True)
class IndexEntry:
    """A component: its name in the pipeline, and its class, which is one of diffusers, of transformers, or of the folder of
    diffusers' pipelines that ``library`` names.
    """

    name: str
    library: str
    class_name: str

    def component_class(self) -> Any:
        """The class. Raises UserError E601 for one that the installed package lacks."""
        module = self.library if self.library in _LIBRARIES else f"diffusers.pipelines.{self.library}"
        try:
            return getattr(importlib.import_module(module), self.class_name)
        except (ImportError, AttributeError, RuntimeError) as error:  # RuntimeError: a package that the class needs
            raise UserError(
                "E601",
                f"the component {self.name} is a {self.class_name} of {self.library}, which cannot be imported",
                why=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}",
                next="install the release of diffusers that model_index.json names as _diffusers_version",
            ) from error


@dataclass(frozen=True)
class PipelineIndex:
    """The pipeline's class and its components, in the order of the file."""

    pipeline: str
    entries: tuple[IndexEntry, ...]
    settings: dict[str, Any]

    def pipeline_class(self) -> Any:
        """The pipeline's class. Raises UserError E601 where diffusers has none of that name."""
        found = getattr(importlib.import_module("diffusers"), self.pipeline, None)
        if found is None:
            raise UserError("E601", f"diffusers has no pipeline {self.pipeline}", next="pip install -U diffusers")
        return found


_LIBRARIES = ("diffusers", "transformers")


def is_pipeline(folder: str | os.PathLike[str]) -> bool:
    """Return whether the folder is one that ``DiffusionPipeline.save_pretrained`` wrote."""
    return os.path.isfile(os.path.join(folder, INDEX))


PREFIX = "diffusers:"


PARTED = {"EncodecModel", "MimiModel", "DacModel", "ParakeetForRNNT", "ParakeetForTDT"}
"""Classes of transformers that are called part by part: codecs of sound, and transducers."""
PARTED_PREFIX = "hf:"


def is_pipeline_source(spec: str) -> bool:
    """Return whether a source is several graphs: ``diffusers:FOLDER``, ``hf:FOLDER`` of a class of ``PARTED``, or the folder alone."""
    return (
        (spec.startswith(PREFIX) and "component=" not in spec)
        or is_pipeline(os.path.expanduser(spec.partition("?")[0]))
        or is_parted(spec)
    )


def is_parted(spec: str) -> bool:
    """Return whether ``hf:FOLDER``, or the folder alone, is a checkpoint of a class of ``PARTED``. With ``?task=`` it is one graph."""
    folder = Path(spec.removeprefix(PARTED_PREFIX)).expanduser()
    if "?" in spec or not os.path.isfile(folder / "config.json"):
        return False
    try:
        classes = read_object(folder / "config.json").get("architectures")
    except UserError:  # reading the checkpoint says what is wrong with it
        return False
    return isinstance(classes, list) and bool(classes) and classes[0] in PARTED


def read_index(folder: Path) -> PipelineIndex:
    """The index of the folder. Raises UserError E302 (not there, no JSON), E601 (says no pipeline, or code of its own)."""
    path = inside(folder, INDEX)
    if not path.is_file():
        raise UserError(
            "E302",
            f"the folder '{folder}' has no {INDEX}",
            why="that file names the components of a diffusers pipeline",
            next="give a folder that pipeline.save_pretrained(FOLDER) wrote",
        )
    stated = read_object(path)
    name = stated.get("_class_name")
    if not isinstance(name, str) or not name.isidentifier():
        why = f"_class_name is {name!r:.80}, not the name of a class of diffusers"
        raise UserError("E601", f"'{path}' names no pipeline that can be exported", why=why, next=_NO_CODE)
    entries = []
    for key, value in stated.items():
        if key.startswith("_") or not isinstance(value, list):
            continue
        if value[:2] == [None, None]:  # a component that is left out, such as the safety checker
            continue
        if len(value) != 2 or not all(isinstance(part, str) and part.isidentifier() for part in [key, *value]):
            why = f"{key} is {value!r:.80}, not a library and a class"
            raise UserError("E601", f"cannot read the component {key} of '{path}'", why=why, next=_NO_CODE)
        entries.append(IndexEntry(key, value[0], value[1]))
    settings = {key: value for key, value in stated.items() if not isinstance(value, list)}
    return PipelineIndex(name, tuple(entries), settings)


_NO_CODE = "code that comes with a checkpoint is not run: export the modules in Python, with fx2onnx.export"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, diffusers shows no progress bars and gives no advice on stderr."""
    logging: Any = importlib.import_module("diffusers.utils.logging")
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
