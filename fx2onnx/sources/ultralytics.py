"""``ultralytics:NAME.yaml`` and ``ultralytics:WEIGHTS.pt``: detectors, segmenters, poses, oriented boxes, classifiers.

The files have the inputs, outputs and metadata of ultralytics' own: ``ultralytics.YOLO("yolo.onnx")`` runs them.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.registry import fail_unknown
from fx2onnx.sources.seeding import seeded, settle
from fx2onnx.sources.source import Options, Source
from fx2onnx.sources.torchvision import ScaledLayer, check_torchvision, spread_scores

IMAGES, OUTPUTS = "images", ("output0", "output1")
_SCALE = re.compile(r"(yoloe?-?v?\d+)[nslmx]")
_QUIET = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}
"""Settings that ultralytics reads when it is imported: no request to find out about the network, no packages installed, no log."""
_KEPT = ("dynamic", "shape", "anchors", "strides")
"""Attributes in which a head remembers its last images; they are computed for each size here."""
_SIZE = 640
_RANDOM_SIZE = 128
"""Height and width on which the statistics of random weights are measured."""
_LOGIT_SPREAD = 2.0


def names() -> list[str]:
    """The configurations that come with the package; a letter of size goes behind the number: ``yolo11n.yaml``."""
    folder = Path(str(_package().__file__)).parent / "cfg" / "models"
    return sorted(path.name for path in folder.rglob("*.yaml"))


def build(name: str, options: Options) -> Source:
    """The model of a configuration, with random weights, or of weights that ultralytics saved, layers fused as for its predictions.

    Shapes:   images [batch, 3, height, width], numbers from 0 to 1; height and width are multiples of the model's stride
              -> output0, predictions as the package's own file has them; of segmenters also output1, the prototypes of masks.
    Raises:   UserError E601 for an unknown name, E302 for weights that cannot be read without running their code, E001 for
              ``--nms`` with a model that suppresses nothing.
    """
    check_torchvision()
    if options.keywords:
        raise UserError("E601", f"ultralytics: does not take {next(iter(options.keywords))}")
    package = _package()
    path = Path(name).expanduser()
    is_random = path.suffix in (".yaml", ".yml")
    with seeded(options.seed), reported(f"ultralytics:{name} cannot be built", text=str):
        model = _of_config(package, name) if is_random else _of_weights(path)
        model.eval()
        if is_random:
            settle(model, options.seed, torch.rand(2, 3, _RANDOM_SIZE, _RANDOM_SIZE))
            _spread(model)
        model.fuse(verbose=False)
        task, stride = str(model.task), int(max(model.stride))
        size = options.image_size_or(224 if task == "classify" else _SIZE)
        if size % stride:
            raise UserError("E001", f"--image-size {size} is no multiple of {stride}, the stride of {name}")
        images = torch.rand(options.batch_or(), 3, size, size)
    rows, columns = (Dim.symbol(word) * stride for word in ("height_steps", "width_steps"))
    suppresses = task in ("detect", "segment", "pose", "obb") and not _is_end_to_end(model)
    if options.nms is not None and not suppresses:
        what = f"--nms has no meaning for ultralytics:{name}, a model to {task}"
        raise UserError("E001", what, why="its boxes are apart already, or it has none", next="leave it out")
    return Source(
        path.stem,
        Predictions(model, task, is_split=options.nms is not None).eval(),
        (images,),
        dynamic_shapes={IMAGES: {0: "batch", 2: rows, 3: columns}},
        output_names=OUTPUTS[: 2 if task == "segment" else 1],
        origin=f"ultralytics {package.__version__}, {'random weights' if is_random else f'weights of {path.resolve()}'}",
        metadata=_metadata(model, task, stride, images, options.nms is not None),
    )


class YoloHead(Protocol):
    """The last layer of a model."""

    dynamic: bool
    kpt_shape: tuple[int, int]


class YoloModel(nn.Module):
    """A model of ultralytics, for annotations only."""

    task: str
    stride: Tensor
    names: dict[int, str]
    model: Sequence[YoloHead]

    def fuse(self, verbose: bool) -> object: ...


class Predictions(nn.Module):
    """A model's predictions without what only its losses read; ``is_split``: apart, as suppression takes them.

    Shapes:  [batch, 3, height, width] -> predictions [batch, 4 + classes + more, boxes] and further outputs of the task, or boxes
             [batch, N, 4] as x1, y1, x2, y2 (oriented: [batch, N, 5]), scores, and what goes with the boxes.
    """

    def __init__(self, model: YoloModel, task: str, *, is_split: bool) -> None:
        super().__init__()
        self.model, self.task, self.is_split = model, task, is_split

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        head = self.model.model[-1]
        kept = {name: getattr(head, name) for name in _KEPT if hasattr(head, name)}
        head.dynamic = True
        found = self.model(images)
        vars(head).update(kept)
        found = found[0] if isinstance(found, tuple | list) else found
        predictions, *others = found if isinstance(found, tuple | list) else (found,)
        if not self.is_split:
            return predictions, *others
        classes = len(self.model.names)
        parts = predictions.transpose(1, 2).split((4, classes, predictions.shape[1] - 4 - classes), dim=2)
        boxes, scores, more = parts
        if self.task == "obb":
            return torch.cat([boxes, more[..., -1:]], dim=2), scores, more[..., :-1], *others
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        return torch.cat([centre - half, centre + half], dim=2), scores, more, *others


def _of_config(package: ModuleType, name: str) -> YoloModel:
    known = names()
    if not os.path.isfile(name) and _SCALE.sub(r"\1", name) not in known:
        fail_unknown("ultralytics model", name, known, hint="give NAME.yaml of fx2onnx list ultralytics, or a file")
    kind = package.RTDETR if Path(name).name.startswith("rtdetr") else package.YOLO
    return cast(YoloModel, kind(name).model)


def _of_weights(path: Path) -> YoloModel:
    """The model that ``model.save`` or training wrote. No code of the file is run."""
    if path.suffix != ".pt" or not path.is_file():
        step = "fx2onnx downloads nothing: give NAME.yaml, or the path of weights"
        raise UserError("E601", f"ultralytics:{path} is neither NAME.yaml nor a file NAME.pt", next=step)
    load = importlib.import_module("ultralytics.nn.tasks").torch_safe_load
    if "safe_only" not in inspect.signature(load).parameters:
        raise UserError(
            "E602", "ultralytics is too old to load weights without their code", next="pip install -U ultralytics"
        )
    with reported(f"cannot read '{path}' without running code that is in it", code="E302"):
        checkpoint, _ = load(path, safe_only=True)
        return cast(YoloModel, (checkpoint.get("ema") or checkpoint["model"]).float())


def _spread(model: YoloModel) -> None:
    """Let random weights find objects: without this, no score of any box passes a threshold."""
    last = [layer for name, layer in model.named_modules() if re.search(r"(one2one_)?cv3\.\d+\.\d+$", name)]
    layers: dict[ScaledLayer, float] = {layer: _LOGIT_SPREAD for layer in last if isinstance(layer, nn.Conv2d)}
    for layer in layers:
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    spread_scores(model, layers, torch.rand(2, 3, _RANDOM_SIZE, _RANDOM_SIZE))


def _is_end_to_end(model: YoloModel) -> bool:
    return bool(getattr(model, "end2end", False)) or "RTDETR" in type(model.model[-1]).__name__


def _metadata(model: YoloModel, task: str, stride: int, images: Tensor, has_suppression: bool) -> dict[str, str]:
    """The entries that ultralytics reads from its own files."""
    batch, _, height, width = images.shape
    head = model.model[-1]
    stated: dict[str, object] = {
        "task": task,
        "stride": stride,
        "batch": batch,
        "imgsz": [height, width],
        "names": dict(model.names),
        "channels": 3,
        "head": type(head).__name__,
        "end2end": _is_end_to_end(model) and task != "classify" and "RTDETR" not in type(head).__name__,
        "args": {"dynamic": True, "batch": batch, "nms": has_suppression},
    }
    if hasattr(head, "kpt_shape"):
        stated["kpt_shape"] = list(head.kpt_shape)
    return {key: str(value) for key, value in stated.items()}


def _package() -> ModuleType:
    if "ultralytics" in sys.modules:
        return sys.modules["ultralytics"]
    with _environment():
        package = importlib.import_module("ultralytics")
        package.YOLO  # noqa: B018 - most of it is imported with this name
    logging.getLogger("ultralytics").setLevel(logging.WARNING)
    return package


@contextmanager
def _environment() -> Iterator[None]:
    """The variables that ultralytics sets while it is imported are gone afterwards."""
    before = dict(os.environ)
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
