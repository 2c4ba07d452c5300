"""The distance of answers on the user's own inputs: metrics, how arrays become calls, and what is wrong with them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.verify.answers import METRICS, distance
from tests.cli.support import invoke


def value(metric: str, found: Any, wanted: Any) -> float:
    score = METRICS[metric]()
    score.add(np.asarray(found), np.asarray(wanted))
    return float(score.value)


@pytest.mark.parametrize(
    ("metric", "found", "wanted", "expected"),
    [
        ("top1", [[0.1, 0.9], [0.8, 0.2]], [[0.2, 0.7], [0.3, 0.4]], 0.5),
        ("top1", [[0.1, 0.9], [0.8, 0.2]], [1, -100], 1.0),
        ("top1", [[[0.1, 0.9], [0.8, 0.2]]], [[1, 0]], 1.0),
        ("tokens", [[[0.1, 0.9], [0.8, 0.2]]], [[1, 1]], 0.5),
        ("tokens", [[1, 2, 3]], [[1, 2]], 0.0),
        ("wer", ["the cat sat"], ["the cat sat down"], 0.25),
        ("wer", [[1, 2, 3, -100]], [[1, 5, 3, 4]], 0.5),
        ("wer", [np.eye(4)[[0, 1, 1, 0, 1, 2]]], [[1, 1, 2]], 0.0),
        ("psnr", [0.0, 1.0, 0.5], [0.0, 1.0, 0.6], -10 * math.log10(0.01 / 3)),
        ("psnr", [0.0, 1.0], [0.0, 1.0], math.inf),
    ],
)  # fmt: skip
def test_metrics_are_their_definitions(metric: str, found: Any, wanted: Any, expected: float) -> None:
    assert value(metric, found, wanted) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(7, 4), (2, 3, 7, 4), (4,)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_word_errors_need_an_axis_of_utterances(shape: tuple[int, ...], dtype: Any) -> None:
    """Scores [T, words] of one utterance look like those of utterances of one word."""
    array = np.zeros(shape, dtype)
    if dtype == np.int64 and len(shape) == 2:
        assert math.isnan(value("wer", array[:, :0], array[:, :0]))
        return
    with pytest.raises(UserError, match=r"wer is for text, token ids \[N, T\] or scores \[N, T, words\]") as raised:
        value("wer", array, array)
    assert raised.value.code == "E001"


@pytest.mark.parametrize(("one", "other", "edits"), [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "abc", 0)])
def test_the_distance_of_words(one: str, other: str, edits: int) -> None:
    assert distance(one, other) == edits


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    path = tmp_path_factory.mktemp("answers") / "model.onnx"
    fx2onnx.export(module, (torch.randn(2, 8),), path, dynamic_shapes={"input": {0: "batch"}})
    return path, module


def samples(count: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal((count, 8)).astype(dtype)


def test_answers_of_all_samples_are_compared(classifier: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path, module = classifier
    arrays = samples(70)
    labels = module(torch.from_numpy(arrays)).argmax(1).numpy()
    labels[:7] = (labels[:7] + 1) % 4
    np.savez(tmp_path / "data.npz", input=arrays, labels=labels)
    verdict = fx2onnx.verify(
        path, module, (torch.randn(2, 8),), effort="quick", data=tmp_path / "data.npz", metric="top1"
    )
    assert [(moved.engine, moved.value, moved.count) for moved in verdict.moved] == [
        ("runner", 1, 70),
        ("onnxruntime", 1, 70),
    ]
    assert verdict.moved[0].by_labels == verdict.moved[0].eager_by_labels == pytest.approx(0.9)
    assert "top1 of output is 1 against eager PyTorch (70 compared); against the labels 0.9" in verdict.describe()
    assert json.loads(json.dumps(verdict.as_dict()))["moved"][1]["engine"] == "onnxruntime"


def test_a_file_with_other_weights_moves_its_answers(classifier: tuple[Path, nn.Module]) -> None:
    path, _ = classifier
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    found = fx2onnx.verify(
        path, other, (torch.randn(2, 8),), effort="quick", data={"input": samples(40)}, metric="top1"
    )
    assert not found.ok
    assert found.moved[0].value < 0.9


@pytest.mark.parametrize("way", ["export", "optimize", "fitted"])
def test_a_quantized_file_is_measured_against_the_module_as_it_is(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Tanh(), nn.Linear(64, 16)).eval(), torch.randn(2, 32)
    path, axes, data = tmp_path / "m.onnx", {"input": {0: "n"}}, torch.randn(200, 32)
    plain = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    calibration = {"input": data[:16, None].expand(-1, 2, -1).numpy()}
    quantize = fx2onnx.Quantize("int2", accuracy=False, **({"calibration": calibration} if way == "fitted" else {}))
    fx2onnx.export(module, (x,), path, dynamic_shapes=axes, quantize=None if way == "optimize" else quantize)
    if way == "optimize":
        fx2onnx.optimize(path, path, quantize=quantize)
    with torch.no_grad():
        wanted = module(data).argmax(1).numpy()
    share = float((InferenceSession(path).run(None, {"input": data.numpy()})[0].argmax(1) == wanted).mean())
    asked = {"input": data.numpy(), "labels": wanted}
    verdict = fx2onnx.verify(path, module, (x,), effort="quick", data=asked, metric="top1")
    assert verdict.ok, verdict.describe()
    moved = verdict.moved[0]
    assert moved.value == moved.by_labels == pytest.approx(share) != 1
    assert (moved.eager_by_labels, moved.by_rounded) == (1, 1)
    assert "against eager PyTorch (200 compared), 1 against it with rounded weights" in str(moved)
    assert all(torch.equal(tensor, plain[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("shape", [(6, 8), (3, 2, 8)], ids=["rows", "calls"])
def test_a_file_of_a_fixed_batch_runs_in_parts(tmp_path: Path, shape: tuple[int, ...]) -> None:
    module = nn.Linear(8, 4).eval()
    fx2onnx.export(module, (torch.randn(2, 8),), tmp_path / "m.onnx")
    data = {"input": samples(6).reshape(shape), "labels": np.zeros(shape[:-1], np.int64)}
    verdict = fx2onnx.verify(
        tmp_path / "m.onnx",
        module,
        (torch.randn(2, 8),),
        effort="quick",
        data=data,
        metric="top1:output",
        engines=["runner"],
    )
    assert (verdict.moved[0].value, verdict.moved[0].count, verdict.tried[-1].sizes) == (1, 6, {"calls": 3})


def largest(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max())


def test_a_function_of_the_users_is_a_metric(classifier: tuple[Path, nn.Module]) -> None:
    path, module = classifier
    for metric in (largest, "tests.verify.test_answers:largest"):
        verdict = fx2onnx.verify(
            path, module, (torch.randn(2, 8),), effort="quick", data={"input": samples(3)}, metric=metric
        )
        assert verdict.moved[0].metric == "largest"
        assert 0 <= verdict.moved[0].value < 1e-5
    with pytest.raises(UserError, match="the metric failed") as raised:
        fx2onnx.verify(
            path, module, (torch.randn(2, 8),), effort="quick", data={"input": samples(3)}, metric=lambda *_: {}
        )
    assert "a metric takes two arrays" in str(raised.value.next)


@pytest.mark.parametrize(
    ("data", "metric", "code"),
    [
        ({"input": samples(2)}, None, "E001"),
        (None, "top1", "E001"),
        ({"input": samples(2)}, "top5", "E001"),
        ({"input": samples(2)}, "top1:logits", "E001"),
        ({"input": samples(2)}, "no.such:function", "E001"),
        ({"input": samples(2)}, lambda found, wanted: 1 / 0, "E001"),
        ({"inputs": samples(2)}, "top1", "E401"),
        ({"input": samples(2), "mask": samples(2)}, "top1", "E401"),
        ({"input": samples(2)[:, :7]}, "top1", "E401"),
        ({"input": samples(40), "labels": np.zeros(41, int)}, "top1", "E401"),
        ({"input": samples(40)[:, None], "labels": np.zeros(39, int)}, "top1", "E401"),
        ({"input": samples(2)}, lambda found, wanted: "0.5", "E001"),
        ({"input": samples(2)}, "tests.verify.fails_at_import:metric", "E001"),
        ({"input": samples(2, np.float64)}, "top1", "E401"),
        ({"input": samples(2)[0]}, "top1", "E401"),
        ("nothing.npz", "top1", "E302"),
        (__file__, "top1", "E302"),
    ],
)
def test_what_does_not_fit_is_one_error(classifier: tuple[Path, nn.Module], data: Any, metric: Any, code: str) -> None:
    path, module = classifier
    with pytest.raises(UserError) as raised:
        fx2onnx.verify(path, module, (torch.randn(2, 8),), effort="quick", data=data, metric=metric)
    assert raised.value.code == code


def test_the_command_shows_how_far_answers_move(tmp_path: Path) -> None:
    path, data = tmp_path / "cnn.onnx", tmp_path / "data.npz"
    assert invoke("export", "zoo:mnist_cnn", "-o", str(path), "--no-verify", "-q").exit_code == 0
    name = fx2onnx.inspect(path)["inputs"][0]["name"]
    np.savez(data, **{name: np.zeros((5, 1, 28, 28), np.float32)})
    args = ["verify", str(path), "zoo:mnist_cnn", "--data", str(data), "--metric", "top1", "--effort", "quick"]
    done = invoke(*args)
    assert done.exit_code == 0, done.output
    assert "top1 of" in done.output


@pytest.mark.parametrize(
    ("metric", "labels"),
    [
        *((metric, np.zeros((3, 1), np.int64)) for metric in ("psnr", "top1")),
        ("tokens", np.zeros((3, 2), np.int64)),
        ("top1", np.zeros(4, np.int64)),
        *(("top1", np.zeros(3, dtype)) for dtype in (np.float32, "U1")),
    ],
)
def test_labels_of_another_shape_or_kind_are_an_error(
    metric: str, labels: Any, classifier: tuple[Path, nn.Module]
) -> None:
    path, module = classifier
    x = torch.randn(3, 8)
    with pytest.raises(UserError, match=f"{metric} compares answers .* with labels"):
        fx2onnx.verify(path, module, (x,), effort="quick", data={"input": x.numpy(), "labels": labels}, metric=metric)


@pytest.mark.parametrize("sizes", [(6, 5), (40, 38), (70, 6)])
def test_inputs_have_the_same_samples(sizes: tuple[int, int], tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x.sum(1), y.sum(1)

    args, axes = (torch.randn(2, 8), torch.randn(2, 8)), {"x": {0: "n"}, "y": {0: "n"}}
    fx2onnx.export(Sum(), args, tmp_path / "m.onnx", dynamic_shapes=axes, verify=False)
    data = {name: samples(size) for name, size in zip("xy", sizes, strict=True)}
    with pytest.raises(UserError, match=f"numbers of samples: x {sizes[0]}, y {sizes[1]}"):
        fx2onnx.verify(tmp_path / "m.onnx", Sum(), args, effort="quick", data=data, metric="psnr")
