"""``zoo:NAME``: the project's own registry of models (``models_zoo``)."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from fx2onnx.base.errors import UserError
from fx2onnx.sources.model_names import known_names
from fx2onnx.sources.registry import fail_unknown
from fx2onnx.sources.source import Options, Source


def registry_name() -> str:
    """The module with the zoo's registry: a wheel has it inside of fx2onnx, a checkout beside it."""
    inside = importlib.util.find_spec("fx2onnx.models_zoo") is not None
    return "fx2onnx.models_zoo.registry" if inside else "models_zoo.registry"


def _registry() -> ModuleType:
    try:
        return importlib.import_module(registry_name())
    except ModuleNotFoundError as error:
        raise UserError(
            "E602", "zoo: needs models_zoo, which is installed with fx2onnx", next="pip install fx2onnx"
        ) from error


def names() -> list[str]:
    """Names of all zoo models."""
    return list(known_names()["zoo"])


def build(name: str, options: Options) -> Source:
    """The zoo model ``name`` with seeded random weights.

    Raises:   UserError E601 for an unknown name, E001 for an option that the model does not take.
    """
    registry = _registry()
    if name not in registry.names():
        fail_unknown("zoo model", name, registry.names(), hint="fx2onnx list zoo")
    given = {**options.sizes(), **options.keywords}
    entry = registry.entry(name)
    if options.weights is not None and "weights" in entry.options:
        given["weights"] = options.weights
    for key in given:
        if key not in entry.options:
            raise UserError(
                "E001", f"zoo:{name} does not take {key}", next=f"it takes {', '.join(entry.options) or 'no option'}"
            )
    source: Source = registry.build(name, seed=options.seed, **given)
    return source
