"""``timm:NAME``: image models of timm with random weights, inputs from their own config."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import torch

from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.registry import fail_unknown
from fx2onnx.sources.seeding import check_memory, seeded, settle
from fx2onnx.sources.source import Options, Source
from fx2onnx.sources.torchvision import check_torchvision


def names() -> list[str]:
    """Names of all architectures."""
    return list(_timm().list_models())


def build(name: str, options: Options) -> Source:
    """The architecture ``name``, never pretrained; ``?key=value`` goes to ``timm.create_model``.

    Shapes:   one input [batch, channels, height, width] of the model's configured size; batch is dynamic.
    Raises:   UserError E601 for an unknown name or arguments that the architecture refuses.
    """
    timm = _timm()
    if not timm.is_model(name):
        fail_unknown(
            "timm model", name, timm.list_models(), hint="timm.list_models() has the architecture names, without a .tag"
        )
    with seeded(options.seed):
        check_memory(f"timm:{name}", lambda: _create(timm, name, options), "choose a smaller architecture")
        module = _create(timm, name, options)
        config = timm.data.resolve_model_data_config(module)
        channels, height, width = config["input_size"]
        size = (options.image_size_or(height), options.image_size_or(width))
        sample = torch.randn(options.batch_or(), channels, *size)
        settle(module, options.seed, torch.randn(2, channels, *size))
    argument = next(iter(inspect.signature(module.forward).parameters))
    return Source(
        name,
        module,
        (sample,),
        dynamic_shapes={argument: {0: "batch"}},
        origin=f"timm {timm.__version__}, random weights, seed {options.seed}",
    )


def _timm() -> ModuleType:
    check_torchvision()
    importlib.import_module("timm.data")
    return importlib.import_module("timm")


def _create(timm: ModuleType, name: str, options: Options) -> torch.nn.Module:
    keywords = dict(options.keywords)
    sized = {"img_size": options.image_size, **keywords} if options.image_size is not None else keywords
    with reported(f"timm:{name} cannot be built with {sized or 'its defaults'}", text=str):
        module: torch.nn.Module
        try:
            module = timm.create_model(name, pretrained=False, **sized)
        except TypeError as error:
            # Only architectures with position embeddings or windows take a size; the others fit any image.
            if "img_size" in keywords or "img_size" not in str(error):
                raise
            module = timm.create_model(name, pretrained=False, **keywords)
        return module.eval()
