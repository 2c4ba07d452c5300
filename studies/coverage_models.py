"""The models of the coverage table: their names, and how each is built small.

``attempts`` gives builders from the smallest to the default form of a model; the first that builds and runs eagerly is
the one to export.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from fx2onnx.sources import Options, Source, names, resolve
from studies.coverage_configs import RECIPES, shrink

SOURCES = ("torchvision", "timm", "hf")
LARGEST_PARAMETERS = 320_000_000
"""Larger shrunk transformers models are not tried: one in float32, float64 and onnxruntime would not fit the memory."""

Attempt = tuple[str, Callable[[], Source]]


def all_names(source: str, full: bool = False) -> list[str]:
    """Every torchvision entry, one architecture per timm family (``full``: every one), every transformers type."""
    if source == "hf":  # in an order that makes the first so many a fair sample
        return sorted(names(source), key=lambda name: zlib.crc32(name.encode()))
    if source == "torchvision":
        return names(source)
    if full:
        return names(source)
    from fx2onnx.sources.timm import _timm as imported

    timm = imported()
    families = {family: timm.list_models(module=family) for family in timm.list_modules()}
    return sorted(_smallest(family) for family in families.values() if family)


_BIG = ("large", "huge", "giant", "gigantic", "enormous", "xl", "base", "128gf", "7b", "_b_", "_l", "_h")
_SMALL = ("tiny", "nano", "pico", "femto", "atto", "small", "mini", "_s", "_t", "_xs")


def _smallest(family: list[str]) -> str:
    """The name that promises the smallest model; timm's own ``test_`` models stand for no published one."""
    real = [name for name in family if not name.startswith("test_")] or family

    def rank(name: str) -> tuple[bool, bool, int, str]:
        return any(word in name for word in _BIG), not any(word in name for word in _SMALL), len(name), name

    return min(real, key=rank)


def attempts(source: str, name: str) -> Iterator[Attempt]:
    """Labelled builders of one model, smallest form first."""
    yield from {"torchvision": _torchvision, "timm": _timm, "hf": _hf}[source](name)


def _torchvision(name: str) -> Iterator[Attempt]:
    # Few detections: among hundreds with random weights some are so nearly equal that rounding decides their order.
    resized = "?min_size=128&max_size=128"
    small: dict[str, tuple[str, int]] = {"raft": ("", 128), "rcnn": (f"{resized}&box_detections_per_img=10", 128)}
    small |= dict.fromkeys(("fcos", "retinanet"), (f"{resized}&detections_per_img=10", 128))
    small["ssd"] = ("?detections_per_img=10", 128)
    keywords, size = next((form for part, form in small.items() if part in name), ("", 64))
    for image_size in (size, 96, 128, 224, None):
        label = f"image {image_size}" if image_size else "default image"
        yield (
            label,
            lambda s=image_size, k=keywords if image_size else "": resolve(f"torchvision:{name}{k}", image_size=s),
        )


def _timm(name: str) -> Iterator[Attempt]:
    from fx2onnx.sources.timm import _timm as imported

    timm = imported()
    configured = timm.get_pretrained_cfg(name)
    if configured is not None and configured.input_size[-1] > 288:
        yield "image 224", lambda: resolve(f"timm:{name}", image_size=224)
    yield "default image", lambda: resolve(f"timm:{name}")


def _hf(name: str) -> Iterator[Attempt]:
    for recipe in RECIPES:
        yield recipe, lambda recipe=recipe: shrunk(name, recipe)


def shrunk(name: str, recipe: str) -> Source:
    """The transformers type ``name`` with a config made smaller, random weights and sample inputs."""
    import torch

    from fx2onnx.sources.hf import kind
    from fx2onnx.sources.hf.inputs import baked_inputs, sample_inputs
    from fx2onnx.sources.hf.sample_context import set_use_cache
    from fx2onnx.sources.seeding import move_constants, seeded

    transformers = kind._transformers()
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    rules = RECIPES[recipe]
    config = config_class()
    if rules:
        config = config_class(**shrink(config.to_dict(), rules))
    set_use_cache(config, False)
    model_class = kind._model_class(transformers, config, None)
    config = kind.config_for(model_class, config)
    with torch.device("meta"):
        parameters = sum(value.numel() for value in model_class(config).parameters())
    if parameters > LARGEST_PARAMETERS:
        raise MemoryError(f"{parameters / 1e6:.0f} million parameters even when shrunk")
    with seeded(0):
        module = model_class(config).eval()
        move_constants(module)
        kwargs, dynamic_shapes = sample_inputs(module, Options())
    bake = baked_inputs(kwargs)
    origin = model_class.__name__
    return Source(name, module, (), kwargs, dynamic_shapes, origin=origin, bake=bake, data_branches="if")
