"""``torchvision:NAME``: every registered torchvision model with random weights."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.registry import fail_unknown
from fx2onnx.sources.seeding import seeded, settle
from fx2onnx.sources.source import DEFAULT_BATCH, Options, Source


@dataclass(frozen=True)
class _Task:
    """Sample inputs of one family. ``sample(batch, size, frames)`` gives the positional arguments."""

    sample: Callable[[int, int, int], tuple[object, ...]]
    size: int
    batch: int = DEFAULT_BATCH
    has_batch_axis: bool = True


# Key: the subpackage of torchvision.models that the builder lives in; anything else takes what classification takes.
_TASKS: dict[str, _Task] = {
    "detection": _Task(lambda batch, size, _: ([torch.rand(3, size, size) for _ in range(batch)],), 320, 1, False),
    "video": _Task(lambda batch, size, frames: (torch.randn(batch, 3, frames, size, size),), 112),
    "optical_flow": _Task(
        lambda batch, size, _: tuple(torch.rand(batch, 3, size, size) * 2 - 1 for _ in range(2)), 128
    ),
}
_CLASSIFICATION = _Task(lambda batch, size, _: (torch.randn(batch, 3, size, size),), 224)
_FRAMES = 16
# Architectures whose position embeddings need the image size when they are built.
_SIZED_BUILDERS = frozenset({"vision_transformer"})


def import_torchvision() -> ModuleType:
    """The ``torchvision`` module.

    Raises:   UserError E602 where torchvision is not installed or cannot be imported.
    """
    if importlib.util.find_spec("torchvision") is None:
        raise UserError("E602", "torchvision is not installed", next="pip install torchvision")
    try:
        return importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        raise UserError(
            "E602",
            "torchvision is installed but cannot be imported",
            why=f"{type(error).__name__}: {error}",
            next="install the torchvision release that belongs to your PyTorch: pip install --upgrade torch torchvision",
        ) from error


def check_torchvision() -> None:
    """Raise E602 where torchvision is installed but cannot be imported: packages that import it report it less clearly."""
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()


def names() -> list[str]:
    """``torchvision.models.list_models()``."""
    return list(import_torchvision().models.list_models())


def build(name: str, options: Options) -> Source:
    """The model ``name``; ``?key=value`` goes to its builder (``num_classes=10``, ``quantize=true``).

    Shapes:   one image batch [batch, 3, size, size] of the size that the published weights want (video: a frame axis
              before the size; optical flow: two batches; detection: a list of [3, size, size]). Batch is dynamic.
    Raises:   UserError E601 for an unknown name or arguments that the builder refuses, E001 for too small an image.
    """
    torchvision = import_torchvision()
    models = torchvision.models
    if name not in models.list_models():
        fail_unknown("torchvision model", name, models.list_models(), hint="fx2onnx list torchvision")
    builder = models.get_model_builder(name)
    family = builder.__module__.removeprefix("torchvision.models.").split(".")[0]
    task = _TASKS.get(family, _CLASSIFICATION)
    size, frames = _sizes(models, name, task, options)
    keywords = dict(options.keywords)
    if family in _SIZED_BUILDERS and options.image_size is not None:
        keywords.setdefault("image_size", size)
    with seeded(options.seed):
        module = _construct(name, builder, keywords)
        if family in _SIZED_BUILDERS:  # the best published weights may be of another size than the architecture
            size = int(str(module.image_size))
        args = task.sample(options.batch_or(task.batch), size, frames)
        # Two images even where one was asked for: statistics of a single value have no variance.
        settle(module, options.seed, *task.sample(2, size, frames))
        if not task.has_batch_axis:
            _spread_scores(module, args)
    parameters = list(inspect.signature(module.forward).parameters)
    dynamic = {parameter: {0: "batch"} for parameter in parameters[: len(args)]} if task.has_batch_axis else None
    origin = f"torchvision {torchvision.__version__}, random weights, seed {options.seed}"
    return Source(name, module, args, dynamic_shapes=dynamic, origin=origin)


_CLASS_LAYER = re.compile(r"(cls_logits|cls_score|classification_head\.module_list\.\d+(\.1)?)$")
_HEAD_LAYER = re.compile(r"(^|\.)(head|roi_heads|rpn)\..*(?<!bbox_pred)(?<!bbox_reg)$")
_LOGIT_SPREAD = 2.0


def _spread_scores(module: torch.nn.Module, args: tuple[object, ...]) -> None:
    """Scale the layers of a detector's heads so that random weights give scores of every size, in place.

    Else no score passes the thresholds, or all are so nearly equal that their order is a matter of rounding.
    """
    spread_scores(
        module,
        {
            layer: _LOGIT_SPREAD if _CLASS_LAYER.search(name) else 1.0
            for name, layer in module.named_modules()
            if _HEAD_LAYER.search(name) and isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear))
        },
        *args,
    )


ScaledLayer: TypeAlias = torch.nn.Conv2d | torch.nn.Linear


def spread_scores(module: torch.nn.Module, layers: Mapping[ScaledLayer, float], *args: object) -> None:
    """Scale the weights of the layers so that their outputs for ``args`` have these standard deviations around the bias, in place."""
    left = dict(layers)

    def scale(layer: ScaledLayer, _: object, output: torch.Tensor) -> torch.Tensor | None:
        if layer not in left:
            return None
        spread = left.pop(layer)
        # The bias stays: it says how rare objects are.
        bias = layer.bias.reshape([-1] + [1] * (output.ndim - 2)) if layer.bias is not None else torch.zeros(())
        factor = spread / max(float((output - bias).std()), 1e-6)
        layer.weight.mul_(factor)
        return (output - bias) * factor + bias

    hooks = [layer.register_forward_hook(scale) for layer in layers]
    try:
        with torch.no_grad():
            module(*args)
    finally:
        for hook in hooks:
            hook.remove()


def _sizes(models: ModuleType, name: str, task: _Task, options: Options) -> tuple[int, int]:
    """Image size and number of frames: the user's, else those of the published weights, else the task's."""
    weights = models.get_model_weights(name)
    best = getattr(weights, "DEFAULT", None)
    crop = getattr(best.transforms(), "crop_size", None) if best is not None else None
    meta = best.meta if best is not None else {}
    size = options.image_size_or(crop[0] if crop else task.size)
    smallest = max(meta.get("min_size", (1, 1)))
    if size < smallest:
        raise UserError(
            "E001", f"--image-size {size} is too small for torchvision:{name}", next=f"use at least {smallest}"
        )
    return size, max(_FRAMES, meta.get("min_temporal_size", 1))


def _construct(name: str, builder: Callable[..., torch.nn.Module], keywords: dict[str, object]) -> torch.nn.Module:
    accepted = inspect.signature(builder).parameters
    if "weights_backbone" in accepted:
        keywords.setdefault("weights_backbone", None)
    with reported(f"torchvision:{name} cannot be built with {keywords or 'its defaults'}", text=str):
        return builder(weights=None, progress=False, **keywords).eval()
