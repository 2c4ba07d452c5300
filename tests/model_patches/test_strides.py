"""Padding to whole strides: at every size as in eager PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")


class Config:
    use_causal_conv, pad_mode, norm_type, trim_right_ratio = True, "constant", "weight_norm", 1.0


CODECS = [("encodec", "Encodec"), ("mimi", "Mimi"), ("pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizer")]


def _compares(folder: str, name: str) -> pytest.MarkDecorator:
    method = f"{name}Conv1d._get_extra_padding_for_conv1d"
    return pytest.mark.compares(f"transformers.models.{folder}.modeling_{folder}:{method}")


@pytest.mark.parametrize(("folder", "name"), [pytest.param(*codec, marks=_compares(*codec)) for codec in CODECS])
@pytest.mark.parametrize("is_causal", [True, False])
def test_sound_is_padded_to_whole_strides(folder: str, name: str, is_causal: bool) -> None:
    module: Any = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    config = Config()
    config.use_causal_conv = is_causal
    layer = getattr(module, f"{name}Conv1d")(config, 2, 3, kernel_size=7, stride=4)
    assert int(layer.padding_total) == 7 - 4  # what the patch rests on
    others = [(torch.randn(2, 2, length),) for length in (12, 13, 15, 16, 29)]
    check(layer.eval(), (torch.randn(2, 2, 22),), others=others, dynamic_shapes=[{2: "length"}])


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.compares(f"transformers.models.{kind}.modeling_{kind}:apply_tf_padding"))
        for kind in ("mobilenet_v1", "mobilenet_v2")
    ],
)
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (3, 1, 2), ((5, 2), (3, 4), 1)])
def test_images_are_padded_as_tensorflow_does(kind: str, kernel: Any, stride: Any, dilation: int) -> None:
    pad: Any = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}").apply_tf_padding
    convolution = torch.nn.Conv2d(3, 2, kernel, stride, dilation=dilation)

    def forward(x: torch.Tensor) -> Any:
        return pad(x, convolution)

    others = [(torch.randn(1, 3, height, width),) for height, width in ((1, 9), (8, 5), (9, 6), (10, 7), (12, 12))]
    result = check(forward, (torch.randn(1, 3, 11, 8),), others=others, dynamic_shapes=[{2: "height", 3: "width"}])
    assert not [each for each in result.report.assumptions if each.kind == "condition"]
    assert "If" not in {node.op_type for node in result.model.graph}
