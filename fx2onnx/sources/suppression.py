"""``--nms``: suppression of overlapping boxes behind a detector, in its graph."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.base.signatures import signature_of
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.source import Source

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("suppressed(Tensor boxes, Tensor scores, float iou_threshold, float score_threshold) -> Tensor")
DETECTIONS = "detections"
_CANDIDATES = 5
"""Rotated boxes that are compared with one another, the best ones, for each that may be kept: as in ultralytics' own files."""
_EPSILON = 1e-7


@dataclass(frozen=True)
class Thresholds:
    """``score``: the score that a box must exceed; ``iou``: the overlap up to which both of two boxes stay; ``max``: boxes of an image.

    The defaults are those of ultralytics' predictions.
    """

    score: float = 0.25
    iou: float = 0.7
    max: int = 300

    @classmethod
    def parsed(cls, text: str) -> Thresholds:
        """``default``, or ``score=0.25,iou=0.7,max=300`` with any of the three. Raises UserError E001."""
        known = {item.name: int if item.name == "max" else float for item in fields(cls)}
        given: dict[str, float] = {}
        for pair in [] if text == "default" else text.split(","):
            name, _, number = pair.strip().partition("=")
            try:
                given[name] = known[name](number)
            except (KeyError, ValueError):
                given[name] = math.nan
        found = replace(cls(), **{name: value for name, value in given.items() if name in known})  # type: ignore[arg-type]
        if not given.keys() <= known.keys() or not (0 <= found.score < 1 and 0 <= found.iou <= 1 and found.max > 0):
            step = "write --nms default, or --nms score=0.25,iou=0.7,max=300: two numbers from 0 to 1, and a number of boxes"
            raise UserError("E001", f"--nms does not take '{text}'", next=step)
        return found


def _suppressed(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float) -> Tensor:
    """Rows (image, class, box) of the boxes that stay; a class suppresses its own boxes only.

    Shapes:  boxes [batch, N, 4] as x1, y1, x2, y2, scores [batch, classes, N] -> int64 [kept, 3].
    """
    nms = torch.ops.torchvision.nms
    rows = [torch.empty(0, 3, dtype=torch.int64)]
    for image, label in (scores > score_threshold).any(2).nonzero().tolist():
        (places,) = (scores[image, label] > score_threshold).nonzero(as_tuple=True)
        kept = places[nms(boxes[image, places], scores[image, label, places], iou_threshold)]
        rows.append(F.pad(kept[:, None], (2, 0)) + torch.tensor([image, label, 0]))
    return torch.cat(rows)


_LIBRARY.impl("suppressed", _suppressed, "CompositeExplicitAutograd")
SUPPRESSED = torch.ops.fx2onnx.suppressed.default


class Suppressed(nn.Module):
    """A detector with suppression behind it. Each box counts for the class of its greatest score.

    Shapes:  the detector's first outputs are boxes [batch, N, 4] as x1, y1, x2, y2, or [batch, N, 5] as centre, width, height and
             angle, and scores [batch, N, classes]. Further outputs [batch, N, K] go with their boxes, others are passed on.
             -> detections [batch, max, 6 + K ...]: four numbers of the box, score, class, what goes with it, the angle; zeros
             where an image has fewer.
    """

    def __init__(self, model: nn.Module, thresholds: Thresholds) -> None:
        super().__init__()
        self.model, self.thresholds = model, thresholds

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        boxes, scores, *others = self.model(**inputs)
        along, apart = _split(boxes, others)
        best, label = scores.max(dim=-1)
        kept = self._kept_rotated(boxes, best, label) if boxes.shape[-1] == 5 else self._kept(boxes, scores, label)
        most = self.thresholds.max
        ranked = F.pad(torch.where(kept, best, -1.0), (0, most), value=-1.0)
        values, places = ranked.topk(most, dim=1)
        is_box = (values >= 0)[..., None]
        rows = torch.cat([boxes[..., :4], best[..., None], label[..., None].to(boxes), *along, boxes[..., 4:]], dim=-1)
        places = torch.where(is_box, places[..., None], 0).expand(-1, -1, rows.shape[-1])
        return torch.where(is_box, rows.gather(1, places), 0.0), *apart

    def _kept(self, boxes: Tensor, scores: Tensor, label: Tensor) -> Tensor:
        """Shapes:  [batch, N, 4], [batch, N, classes], [batch, N] -> bool [batch, N]."""
        is_own = label[..., None] == torch.arange(scores.shape[-1])
        own = torch.where(is_own, scores, 0.0).transpose(1, 2)
        rows = SUPPRESSED(boxes, own, self.thresholds.iou, self.thresholds.score)
        kept = torch.zeros_like(label, dtype=torch.bool)
        return kept.index_put((rows[:, 0], rows[:, 2]), torch.ones_like(rows[:, 0], dtype=torch.bool))

    def _kept_rotated(self, boxes: Tensor, best: Tensor, label: Tensor) -> Tensor:
        """A box stays where no better one of its class overlaps it by more, among the best ``_CANDIDATES`` times ``max``.

        Shapes:  [batch, N, 5], [batch, N], [batch, N] -> bool [batch, N].
        """
        count = torch.sym_min(_CANDIDATES * self.thresholds.max, best.shape[1])  # type: ignore[no-untyped-call]
        values, places = best.topk(count, dim=1)
        chosen, labels = boxes.gather(1, places[..., None].expand(-1, -1, 5)), label.gather(1, places)
        is_better = torch.ones(count, count, dtype=torch.bool).triu(1).t()  # [of, by]
        is_same = labels[:, :, None] == labels[:, None, :]
        overlaps = (rotated_overlap(chosen) > self.thresholds.iou) & is_same & is_better
        stays = ~overlaps.any(dim=2) & (values > self.thresholds.score)
        return torch.zeros_like(label, dtype=torch.bool).scatter(1, places, stays)


def rotated_overlap(boxes: Tensor) -> Tensor:
    """1 - Hellinger distance of the boxes as normal distributions, each with each.

    Shapes:  [batch, N, 5] as centre, width, height, angle -> [batch, N, N].
    Source:  Llerena et al., Gaussian Bounding Boxes and Probabilistic Intersection-over-Union, 2021, equations 9 to 13.
    """
    x, y, width, height, angle = boxes[..., None].unbind(dim=2)
    along, across = width.square() / 12, height.square() / 12
    cos, sin = angle.cos(), angle.sin()
    xx, yy = along * cos.square() + across * sin.square(), along * sin.square() + across * cos.square()
    xy = (along - across) * cos * sin
    area = (xx * yy - xy.square()).clamp(min=0)
    dx, dy, sxx, syy, sxy, product = (
        *(one - one.mT for one in (x, y)),
        *(one + one.mT for one in (xx, yy, xy)),
        area * area.mT,
    )
    both = sxx * syy - sxy.square()
    apart = (0.25 * (sxx * dy.square() + syy * dx.square()) - 0.5 * sxy * dx * dy) / (both + _EPSILON)
    shape = 0.5 * (both / (4 * product.sqrt() + _EPSILON) + _EPSILON).log()
    return 1 - (1 - (-(apart + shape).clamp(_EPSILON, 100)).exp() + _EPSILON).sqrt()


def _split(boxes: Tensor, others: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that go with boxes, and the rest."""
    goes = [one.dim() == 3 and one.shape[:2] == boxes.shape[:2] for one in others]
    return [one for one, is_so in zip(others, goes, strict=True) if is_so], [
        one for one, is_so in zip(others, goes, strict=True) if not is_so
    ]


def with_suppression(source: Source, text: str) -> Source:
    """``source`` with suppression behind it, with the thresholds that ``text`` says.

    Raises:   UserError E001 for a detector of another form, or other words.
    """
    thresholds = Thresholds.parsed(text)
    importlib.import_module("torchvision.ops")  # which brings the operator

    signature = signature_of(source.module.forward)
    bound = dict(source.kwargs) if signature is None else signature.bind(*source.args, **source.kwargs).arguments
    with torch.no_grad(), reported(f"{source.name} fails on its example inputs"):
        outputs = source.module(**bound)
    _check_form(source.name, outputs)
    names = source.output_names
    apart = _split(outputs[0], list(outputs[2:]))[1]
    return replace(
        source,
        module=Suppressed(source.module, thresholds).eval(),
        args=(),
        kwargs=bound,
        output_names=names if len(names) == 1 + len(apart) else (DETECTIONS, *[f"output_{n + 1}" for n in range(len(apart))]),
        origin=f"{source.origin}, with suppression",
    )  # fmt: skip


def _check_form(name: str, outputs: object) -> None:
    tensors = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if len(tensors) >= 2 and all(isinstance(one, Tensor) for one in tensors):
        boxes, scores = tensors[:2]
        is_form = boxes.dim() == scores.dim() == 3 and boxes.shape[:2] == scores.shape[:2]
        if is_form and boxes.shape[2] in (4, 5) and boxes.is_floating_point() and scores.is_floating_point():
            return
    shapes = ", ".join(str(list(one.shape)) if isinstance(one, Tensor) else type(one).__name__ for one in tensors)
    raise UserError(
        "E001",
        f"--nms does not fit {name}",
        why=f"it returns {shapes}",
        next="--nms is for modules that return boxes [batch, N, 4] as x1, y1, x2, y2 and scores [batch, N, classes]: "
        "write a factory that returns one",
    )
