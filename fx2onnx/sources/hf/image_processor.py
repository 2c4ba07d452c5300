"""A model with its image processor in front: images as they are read from a file, of any height and width; and answers behind it:
boxes and maps of labels in pixels of the images."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.sources.foreign_errors import reported, summary
from fx2onnx.sources.hf.transformers_types import Inputs, Processor
from fx2onnx.sources.source import Source

Decoder: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""A function of outputs of the model, and of the height and the width of the images."""
_IMAGE = (61, 47)
"""The height and the width of the images for which a decoder is compared with the processor."""


def _ranked(scores: Tensor, labels: Tensor, boxes: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    """Shapes:  scores, labels [batch, N], boxes [batch, N, 4] as centre, width and height -> boxes as corners in pixels."""
    x, y, across, along = boxes.unbind(-1)
    left, top, right, bottom = x - 0.5 * across, y - 0.5 * along, x + 0.5 * across, y + 0.5 * along
    return scores, labels, torch.stack([left * width, top * height, right * width, bottom * height], dim=-1)


def _by_softmax(logits: Tensor, boxes: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    """The last class says that there is nothing."""
    scores, labels = logits.softmax(-1)[..., :-1].max(-1)
    return _ranked(scores, labels, boxes, height, width)


def _by_sigmoid(logits: Tensor, boxes: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    values, labels = logits.max(-1)
    return _ranked(values.sigmoid(), labels, boxes, height, width)


def _best_pairs(most: int | None) -> Decoder:
    """The best pairs of box and class: ``most`` of them, or as many as there are boxes."""

    def decode(logits: Tensor, boxes: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
        scores = logits.sigmoid().flatten(1)
        values, places = scores.topk(logits.shape[1] if most is None else min(most, scores.shape[1]), dim=1)
        rows = places.div(logits.shape[2], rounding_mode="floor")[..., None].expand(-1, -1, 4)
        return _ranked(values, places % logits.shape[2], boxes.gather(1, rows), height, width)

    return decode


def _map_of(logits: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    """Shapes:  [batch, classes, rows, columns] -> [batch, height, width]."""
    return (F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False).argmax(1),)


def _map_of_queries(classes: Tensor, masks: Tensor, height: int, width: int) -> tuple[Tensor, ...]:
    """Shapes:  [batch, queries, classes + 1], [batch, queries, rows, columns] -> [batch, height, width]."""
    return _map_of(torch.einsum("bqc,bqhw->bchw", classes.softmax(-1)[..., :-1], masks.sigmoid()), height, width)


@dataclass(frozen=True)
class _Answer:
    """``method`` of a processor, which makes ``names`` of the outputs ``taken``, whose ranks are ``dims``."""

    method: str
    taken: tuple[str, ...]
    dims: tuple[int, ...]
    names: tuple[str, ...]
    decoders: tuple[Decoder, ...]
    settings: dict[str, float]


_MAPS = "post_process_semantic_segmentation"
_DETECTION = (_by_softmax, _by_sigmoid, _best_pairs(None), _best_pairs(100))
_ANSWERS = (
    _Answer("post_process_object_detection", ("logits", "pred_boxes"), (3, 3), ("scores", "labels", "boxes"), _DETECTION, {"threshold": -1.0}),
    _Answer(_MAPS, ("logits",), (4,), ("segmentation",), (_map_of,), {}),
    _Answer(_MAPS, ("class_queries_logits", "masks_queries_logits"), (3, 4), ("segmentation",), (_map_of_queries,), {}),
)  # fmt: skip


class Answered(nn.Module):
    """A model of images with ``decoder`` behind it."""

    def __init__(self, model: nn.Module, taken: Sequence[str], decoder: Decoder) -> None:
        super().__init__()
        self.model, self._taken, self._decoder = model, tuple(taken), decoder

    def forward(self, images: Tensor, **others: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(images, **others)
        return self._decoder(*(getattr(outputs, name) for name in self._taken), *images.shape[-2:])


def with_answers(source: Source, processor: Processor) -> Source:
    """``source`` with what ``processor`` makes of a detector's or a segmenter's outputs behind it: all boxes, whatever their score, and
    maps of labels. A model stays as it is where the processor does nothing, or something else than is known here.
    """
    with torch.no_grad(), reported(f"{source.name} fails on its example inputs"):
        outputs = source.module(**source.kwargs)
    for answer in _ANSWERS:
        given = [getattr(outputs, name, None) for name in answer.taken]
        tensors = [one for one in given if isinstance(one, Tensor)]
        if hasattr(processor, answer.method) and tuple(one.dim() for one in tensors) == answer.dims:
            decoder = next((each for each in answer.decoders if _is_as(each, answer, processor, tensors)), None)
            if decoder is not None:
                module = Answered(source.module, answer.taken, decoder).eval()
                return replace(source, module=module, output_names=answer.names)
    return source


def _is_as(decoder: Decoder, answer: _Answer, processor: Processor, like: Sequence[Tensor]) -> bool:
    """Return whether the decoder gives what the processor does, for random outputs of the model."""
    outputs = [
        torch.rand(one.shape) * 4 - 2 if one.dim() > 3 or name != "pred_boxes" else torch.rand(one.shape)
        for name, one in zip(answer.taken, like, strict=True)
    ]
    sizes = [_IMAGE] * len(outputs[0])
    named = SimpleNamespace(**dict(zip(answer.taken, outputs, strict=True)))
    try:
        expected = getattr(processor, answer.method)(named, target_sizes=sizes, **answer.settings)
        found = decoder(*outputs, *_IMAGE)
        for image, one in enumerate(expected):
            parts = one if isinstance(one, dict) else {answer.names[0]: one}
            for name, got in zip(answer.names, found, strict=True):
                torch.testing.assert_close(got[image], parts[name], check_dtype=False)
    except Exception:  # the processor's own, of any class, or another number
        return False
    return True


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
