"""A model with its image processor in front: images as they are read from a file, of any height and width."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.hf.answers import with_answers
from fx2onnx.sources.hf.transformers_types import Inputs, Processor
from fx2onnx.sources.source import Source

PIXELS, MASK, IMAGES = "pixel_values", "pixel_mask", "images"
FILES = ("preprocessor_config.json", "processor_config.json")
_SIZES = ((61, 47), (40, 83))
"""Heights and widths of the images on which the batch is compared with the processor's own result."""


class Preprocessed(nn.Module):
    """The processor's own steps for a batch of images of one size, which are to it one image with an axis more; then the model."""

    def __init__(self, model: nn.Module, processor: Processor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model, self._processor, self._dtype = model, processor, dtype
        taken = inspect.signature(processor._preprocess).parameters.values()
        needed = {one.name: None for one in taken if one.default is one.empty and one.kind is not one.VAR_KEYWORD}
        named = {name: getattr(processor, name, None) for name in processor._valid_kwargs_names}
        stated = {"disable_grouping": True, "return_tensors": None}
        self._taken = frozenset(inspect.signature(model.forward).parameters)
        self._settings = needed | processor._standardize_kwargs(**named) | stated
        del self._settings["images"]
        if self._settings.get("do_pad") and self._settings.get("pad_size") is None:
            self._settings["do_pad"] = False  # images of one size have the size of the largest

    def features(self, images: Tensor) -> Inputs:
        """Shapes:  images uint8 [batch, 3, height, width] -> pixel_values [batch, 3, ...], and what comes with them."""
        found = self._processor._preprocess([images], **self._settings)
        features = {
            name: value[0] for name, value in (found.items() if isinstance(found, Mapping) else [(PIXELS, found)])
        }
        tensors = {name: one for name, one in features.items() if isinstance(one, Tensor)}
        return {name: one.to(self._dtype) if one.is_floating_point() else one for name, one in tensors.items()}

    def forward(self, images: Tensor, **others: Tensor) -> object:
        return self.model(**{name: one for name, one in self.features(images).items() if name in self._taken}, **others)


def with_image_processor(source: Source, folder: Path) -> Source:
    """``source`` with ``images``, uint8 [batch, 3, height, width], instead of ``pixel_values``, and the processor's boxes or maps of
    labels behind it (``answers.py``).

    Raises:   UserError E601 where the folder has no image processor, or one that takes other steps for a batch than for an image.
    """
    check_files(folder, "image processor")
    pixels = source.kwargs.get(PIXELS)
    processor = _processor_of(folder)
    if not isinstance(pixels, Tensor) or pixels.dim() != 4:
        raise unfit(processor, f"{type(source.module).__name__} takes no {PIXELS} [batch, channels, height, width]")
    module = Preprocessed(source.module, processor, pixels.dtype).eval()
    _compare(module, processor, pixels.shape[0])
    shapes = dict(source.dynamic_shapes or {})
    batch = shapes.pop(PIXELS, {}).get(0, "batch")
    height, width = (max(int(size) * 5 // 4, 8) for size in pixels.shape[-2:])
    images = torch.randint(0, 256, (pixels.shape[0], 3, height, width + 3), dtype=torch.uint8)
    features = module.features(images)
    others = {name: value for name, value in source.kwargs.items() if name not in (*features, MASK)}
    made = replace(
        source,
        module=module,
        kwargs={IMAGES: images, **others},
        dynamic_shapes={
            IMAGES: {0: batch, 2: "height", 3: "width"},
            **{n: a for n, a in shapes.items() if n in others},
        },
        origin=f"{source.origin}, with {type(processor).__name__}",
    )
    return with_answers(made, processor)


def check_files(folder: Path, what: str) -> None:
    """Raise UserError E601 where the folder holds no processor."""
    if not any((folder / name).is_file() for name in FILES):
        raise UserError(
            "E601",
            f"'{folder}' has no {what}",
            why=f"neither {' nor '.join(FILES)} is in it",
            next=["save it once: processor.save_pretrained(FOLDER)", "or leave out --with-processor"],
        )


def _processor_of(folder: Path) -> Processor:
    transformers = importlib.import_module("transformers")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises a class for each kind of fault
        raise UserError("E601", f"cannot read the image processor of '{folder}'", why=summary(error)) from error
    if getattr(processor, "backend", "") != "torchvision" or not hasattr(processor, "_standardize_kwargs"):
        raise unfit(processor, "its steps are not those of torchvision")
    return cast(Processor, processor)


def _compare(module: Preprocessed, processor: Processor, batch: int) -> None:
    """Raise UserError E601 where the steps for a batch give other numbers than those for each image."""
    for height, width in _SIZES:
        images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)
        try:
            found = module.features(images)
            expected = processor(list(images), return_tensors="pt")
        except Exception as error:  # so does each processor
            raise unfit(processor, summary(error)) from error
        for name, value in expected.items():
            if name == MASK and name not in found and bool(value.all()):
                continue  # without one, a model sees the whole image
            got = found.get(name)
            if not isinstance(got, Tensor) or got.shape != value.shape or not torch.equal(got, value.to(got.dtype)):
                raise unfit(processor, f"its {name} of a batch are other numbers than those of single images")


def unfit(processor: Processor, why: str) -> UserError:
    return UserError(
        "E601",
        f"{type(processor).__name__} cannot be put into a graph",
        why=why,
        next="leave out --with-processor, and run the processor before the file",
    )
