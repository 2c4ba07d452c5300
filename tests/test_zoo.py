"""Every model of the zoo at its published size: the file is valid, runner and onnxruntime agree with eager PyTorch."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.sources import Source
from fx2onnx.torchcompat.pytrees import flatten
from models_zoo.registry import build
from models_zoo.registry import entry as registry_entry


@pytest.fixture
def folder() -> Iterator[Path]:
    """Emptied after each test: the files are hundreds of megabytes."""
    with tempfile.TemporaryDirectory(prefix="fx2onnx-zoo-") as path:
        yield Path(path)


PROMISED = (
    "mnist_cnn", "mnist_cnn_same", "resnet18", "resnet50", "mobilenet_v3_large", "vit_b_16", "bert_base_mlm", "gpt2",
    "t5_small",
)  # fmt: skip
TINY = ("vit_tiny", "bert_tiny", "gpt2_tiny", "t5_tiny", "llama_tiny")
SMALL: dict[str, dict[str, int]] = {
    "efficientnet_b0": {"image_size": 64, "batch": 1},
    "deit_tiny": {"image_size": 64},
    "deeplabv3": {"image_size": 64},
    "fcn_resnet50": {"image_size": 64},
    "yolov5": {"image_size": 64, "width": 8},
    "realesrgan_tiny": {},
    "diffusion_unet": {},
    "llama_small": {"seq": 16},
    "whisper_tiny": {},
    "clip_tiny": {},
    "lstm_tagger": {},
    "gru_seq2seq": {},
    "mnist_trained": {},
}
"""Smaller forms of the models whose published sizes would take too long here."""
LARGE = ("efficientnet_b0", "deit_tiny", "deeplabv3", "fcn_resnet50", "yolov5", "realesrgan_x4", "llama_small")


def check_small(name: str, folder: Path, *, dynamic: bool, **options: int) -> None:
    entry = build(name, **options)
    path = folder / "model.onnx"
    result = fx2onnx.export(
        entry.module,
        entry.args,
        path,
        kwargs=entry.kwargs,
        output_names=list(entry.output_names) or None,
        dynamic_shapes=entry.dynamic_shapes if dynamic else None,
    )
    onnx.checker.check_model(str(path), full_check=True)
    if entry.output_names:
        assert result.report.output_names == list(entry.output_names)
    assert any(value.shape.is_dynamic() for value in result.model.graph.inputs) == dynamic
    verdict = verify(result, entry.module, entry.args, entry.kwargs, seeds=() if dynamic else (1,))
    assert verdict.ok, verdict.describe()
    assert {row.engine for row in verdict.rows} == {"runner", "onnxruntime"}
    assert any(row.inputs.startswith("sizes") for row in verdict.rows) == dynamic, verdict.notes
    # Where an image is rounded to whole numbers, the BLAS of some processors flips a few that lie between two.
    known = ("where rounding in the module", "ONNX says nothing")
    assert not [note for note in verdict.notes if not any(text in note for text in known)]
    check_tolerance(name, path, entry)


def check_tolerance(name: str, path: Path, entry: Source) -> None:
    """The runner's largest error is below the share that the registry states; the module in float64 tells the truth.

    Eager float32 is no reference here: how far it is off itself depends on the machine.
    """
    exact = copy.deepcopy(entry.module).double()
    args = [_wide(value) for value in entry.args]
    kwargs = {key: _wide(value) for key, value in entry.kwargs.items()}
    with torch.no_grad():
        expected = [leaf.value for leaf in flatten(exact(*args, **kwargs))[0]]
    session = fx2onnx.runner.InferenceSession(str(path))
    values = [*entry.args, *entry.kwargs.values()]
    feeds = {item.name: value.numpy() for item, value in zip(session.get_inputs(), values, strict=True)}
    for found, want in zip(session.run(None, feeds), expected, strict=True):
        if want.is_floating_point():
            worst = np.abs(found - want.numpy()).max(initial=0.0)
            assert worst <= registry_entry(name).tolerance * float(want.abs().max())


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


@pytest.mark.long_cases(but=["lstm_tagger", "gru_seq2seq"])
@pytest.mark.parametrize("name", SMALL)
def test_small_static(name: str, folder: Path) -> None:
    check_small(name, folder, dynamic=False, **SMALL[name])


@pytest.mark.long_cases(but=["lstm_tagger", "gru_seq2seq"])
@pytest.mark.parametrize("name", SMALL)
def test_small_dynamic(name: str, folder: Path) -> None:
    check_small(name, folder, dynamic=True, **SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large(name: str, folder: Path) -> None:
    check_small(name, folder, dynamic=False)


@pytest.mark.long
def test_an_exported_model_classifies(folder: Path) -> None:
    from models_zoo.digits import digits

    entry = build("mnist_trained")
    path = folder / "digits.onnx"
    fx2onnx.export(entry.module, entry.args, path, dynamic_shapes=entry.dynamic_shapes)
    images, labels = digits(test=True)
    session = fx2onnx.runner.InferenceSession(str(path))
    (logits,) = session.run(None, {"image": images.numpy()})
    assert (logits.argmax(1) == labels.numpy()).mean() > 0.97
    assert (logits.argmax(1) == entry.module(images).argmax(1).numpy()).all()


@pytest.mark.long
def test_detections_are_as_many_as_the_image_has(folder: Path) -> None:
    entry = build("yolov5", image_size=64, width=8, batch=1)
    path = folder / "yolo.onnx"
    fx2onnx.export(entry.module, entry.args, path, output_names=list(entry.output_names))
    session = fx2onnx.runner.InferenceSession(str(path))
    rng = np.random.default_rng(0)
    images = [rng.random((1, 3, 64, 64), np.float32) * scale for scale in (0.1, 1.0, 20.0)]
    counts = []
    for image in images:
        boxes, scores, classes, at = session.run(None, {session.get_inputs()[0].name: image})
        assert boxes.shape == (len(scores), 4)
        assert len(classes) == len(at) == len(scores)
        assert (np.diff(scores) <= 0).all()
        counts.append(len(scores))
    assert len(set(counts)) > 1


@pytest.mark.long_cases(but=["mnist_cnn", "mnist_cnn_same", "vit_tiny", "bert_tiny", "gpt2_tiny"])
@pytest.mark.parametrize("name", [*PROMISED, *TINY])
def test_static(name: str, folder: Path) -> None:
    entry = build(name)
    path = folder / "model.onnx"
    result = fx2onnx.export(entry.module, entry.args, path, kwargs=entry.kwargs)
    onnx.checker.check_model(str(path), full_check=True)
    verdict = verify(result, entry.module, entry.args, entry.kwargs, seeds=() if name in PROMISED else (1, 2))
    assert verdict.ok, verdict.describe()
    assert {row.engine for row in verdict.rows} == {"runner", "onnxruntime"}


@pytest.mark.long_cases(but=["mnist_cnn"])
@pytest.mark.parametrize("name", ["mnist_cnn", "resnet18", *TINY])
def test_dynamic(name: str, folder: Path) -> None:
    entry = build(name)
    path = folder / "model.onnx"
    result = fx2onnx.export(entry.module, entry.args, path, kwargs=entry.kwargs, dynamic_shapes=entry.dynamic_shapes)
    onnx.checker.check_model(str(path), full_check=True)
    assert any(value.shape.is_dynamic() for value in result.model.graph.inputs)
    verdict = verify(result, entry.module, entry.args, entry.kwargs)
    assert verdict.ok, verdict.describe()
    assert any(row.inputs.startswith("sizes") for row in verdict.rows), verdict.notes


QUICK = ("lstm_tagger", "gru_seq2seq", "whisper_tiny", "clip_tiny", "diffusion_unet", "realesrgan_tiny")


@pytest.mark.long_cases(
    "t5_tiny-11",
    "t5_tiny-13",
    "t5_tiny-17",
    "t5_tiny-20",
    "whisper_tiny-11",
    "whisper_tiny-13",
    "whisper_tiny-17",
    "clip_tiny-11",
    "clip_tiny-13",
    "clip_tiny-20",
    "diffusion_unet-11",
)
@pytest.mark.parametrize("opset", [11, 13, 17, 20, 23])
@pytest.mark.parametrize("name", ["mnist_cnn_same", *TINY, *QUICK])
def test_opsets(name: str, opset: int) -> None:
    entry = build(name)
    result = fx2onnx.export(entry.module, entry.args, kwargs=entry.kwargs, opset_version=opset)
    assert result.model.opset_imports[""] == opset
    verdict = verify(result, entry.module, entry.args, entry.kwargs, seeds=())
    assert verdict.ok, verdict.describe()
