"""Images of any size, resized, cropped and padded to whole strides as torchvision and transformers do, which decide in Python by the size; and
windows of sound, which begin where transformers lets them begin, for samples of any number of frames.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.model_patches.support import patched
from tests.support import check

pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
AXES = {"x": {0: "batch", 2: "height", 3: "width"}}
SIZES = ((2, 3, 21, 30), (1, 3, 30, 17), (1, 3, 12, 12), (1, 1, 5, 40), (2, 3, 12, 9))


def _samples(dtype: torch.dtype, channels: int = 3) -> list[Any]:
    made = [torch.randint(0, 256, (size[0], channels, *size[2:])) for size in SIZES]
    return [((one / 255).to(dtype) if dtype.is_floating_point else one.to(dtype),) for one in made]


def _resize(**options: Any) -> Any:
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")
    return lambda x: functional.resize(x, **options)


@pytest.mark.long_cases("1", "2", "3", "4", "5")
@pytest.mark.compares("torchvision.transforms.v2.functional:resize_image")
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        pytest.param(torch.uint8, {"size": [12, 9]}, id="0"),
        pytest.param(torch.uint8, {"size": [12, 9], "interpolation": 3}, id="1"),
        pytest.param(torch.uint8, {"size": [12], "interpolation": 3}, id="2"),
        pytest.param(torch.float32, {"size": 12}, id="3"),
        pytest.param(torch.int16, {"size": [20, 31], "interpolation": 3}, id="4"),
        pytest.param(torch.uint8, {"size": [9, 7], "interpolation": 0}, id="5"),
    ],
)
def test_an_image_is_resized(dtype: torch.dtype, options: dict[str, Any]) -> None:
    resize = _resize(**options)
    samples = _samples(dtype)
    with patched():
        torch.testing.assert_close(resize(samples[0][0]), resize(samples[0][0].clone()))
    at_rest = 1 if dtype == torch.int16 else 0 if dtype == torch.uint8 else 1e-5
    check(resize, samples[0], others=samples[1:], dynamic_shapes=AXES, rtol=0, atol=at_rest)


@pytest.mark.compares("transformers.image_transforms:get_resize_output_image_size")
@pytest.mark.compares("transformers.image_processing_backends:TorchvisionBackend.center_crop")
@pytest.mark.parametrize("crop", [(8, 20), pytest.param((12, 12), marks=pytest.mark.long)])
def test_the_shorter_edge_and_the_middle(crop: tuple[int, int]) -> None:
    transforms = importlib.import_module("transformers.image_transforms")
    backends = importlib.import_module("transformers.image_processing_backends")
    sizes = importlib.import_module("transformers.image_utils").SizeDict(height=crop[0], width=crop[1])

    def forward(x: torch.Tensor) -> torch.Tensor:
        size = transforms.get_resize_output_image_size(
            x, 10, default_to_square=False, input_data_format="channels_first"
        )
        found: torch.Tensor = backends.TorchvisionBackend.center_crop(None, F.interpolate(x, size=size), sizes)
        return found

    samples = _samples(torch.float32)
    check(forward, samples[0], others=samples[1:], dynamic_shapes=AXES)


@pytest.mark.parametrize(
    ("mode", "size"),
    [("bilinear", (7, 30)), ("bicubic", (7, 30)), pytest.param("bicubic", None, marks=pytest.mark.long)],
)
def test_bytes_are_resampled_in_fixed_point(mode: str, size: Any) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        wanted = (x.shape[2] * 2 // 3, x.shape[3] + 5) if size is None else size
        return F.interpolate(x, size=wanted, mode=mode, antialias=True)

    samples = _samples(torch.uint8)
    check(forward, samples[0], others=samples[1:], dynamic_shapes=AXES, rtol=0, atol=0)


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


pytest.importorskip("transformers", reason="transformers is not installed")


MODULES = [f"transformers.models.{kind}.modeling_{kind}" for kind in ("qwen3_asr", "qwen3_omni_moe")]


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.compares(f"{name}:get_audio_cu_seqlens")) for name in MODULES]
)
@pytest.mark.parametrize("frames", [[8], [200, 801, 37], [100, 1600]])
@pytest.mark.parametrize("windows", [(800, 50), (40, 10)])
def test_windows_begin_where_they_do_in_eager(module: str, frames: list[int], windows: tuple[int, int]) -> None:
    seqlens: Any = importlib.import_module(module).get_audio_cu_seqlens
    chunk = 2 * windows[1]
    pieces = [part for count in frames for part in [chunk] * (count // chunk) + [count % chunk] * bool(count % chunk)]
    given = torch.tensor(pieces), torch.tensor(frames), *windows
    expected = seqlens(*given)
    with patched():
        found = seqlens(*given)
        own = torch.tensor([0, 3], dtype=torch.int32)
        assert torch.equal(seqlens(*given, {"cu_seqlens": own}), own)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
