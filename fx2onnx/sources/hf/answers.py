"""Answers behind a model with its image processor in front: boxes and maps of labels in pixels of the images, as the processor gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.transformers_types import Processor
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
