"""``@zoo_model("resnet50")`` registers a factory; ``build("resnet50")`` gives its ``Source``.

Importing this module imports no framework: the definitions are loaded on first use.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx2onnx.sources import Source

Factory = Callable[..., "Source"]

# Files of the registry; each registers its models when it is imported.
_DEFINITIONS = (
    *(".vision", ".yolo", ".super_resolution", ".diffusion"),
    *(".text", ".multimodal", ".recurrent", ".digits"),
)


@dataclass(frozen=True)
class ZooModel:
    """A registered model. ``options`` are the keywords that its factory takes beside ``seed``."""

    name: str
    factory: Factory
    summary: str
    options: tuple[str, ...]
    place: str
    tolerance: float


DEFAULT_TOLERANCE = 1e-4
"""Largest error of an exported model's output in any engine, as a share of the output's largest number."""

_models: dict[str, ZooModel] = {}


def zoo_model(name: str, *, tolerance: float = DEFAULT_TOLERANCE) -> Callable[[Factory], Factory]:
    """Register a factory ``(*, seed=0, **options) -> Source`` under ``name``; its docstring's first line is the summary.

    ``tolerance`` is what the exported file may be off, as a share of the largest number of an output.

    Raises:   ValueError where the name is taken, naming both places.
    """

    def register(factory: Factory) -> Factory:
        code = factory.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        if name in _models and _models[name].place != place:
            raise ValueError(f"zoo model {name!r} is registered twice: {_models[name].place} and {place}")
        options = tuple(key for key in inspect.signature(factory).parameters if key != "seed")
        summary = (inspect.getdoc(factory) or "").split("\n")[0]
        _models[name] = ZooModel(name, factory, summary, options, place, tolerance)
        return factory

    return register


def names() -> list[str]:
    """All registered names, in order of registration."""
    _load()
    return list(_models)


def entry(name: str) -> ZooModel:
    """The registration of ``name``. Raises KeyError for an unknown name."""
    _load()
    return _models[name]


def build(name: str, *, seed: int = 0, **options: Any) -> Source:
    """The model in eval mode with seeded random weights, with one sample call and its dynamic dims.

    Raises:   KeyError for an unknown name, TypeError for an option that the model does not take.
    """
    return entry(name).factory(seed=seed, **options)


def _load() -> None:
    for module in _DEFINITIONS:
        importlib.import_module(module, __package__)
