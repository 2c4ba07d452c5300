"""Image models: two MNIST networks of our own, and torchvision's architectures at their published sizes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.seeding import seeded, settle
from fx2onnx.sources.source import DEFAULT_BATCH, Source
from fx2onnx.sources.torchvision import import_torchvision

from .registry import zoo_model


class MnistCnn(nn.Module):
    """Two convolutions, batch norm, max pooling and two linear layers: [N, 1, 28, 28] -> log-probabilities [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class MnistCnnSame(nn.Module):
    """SAME padding that is not symmetric, in its three usual spellings: [N, 1, 28, 28] -> logits [N, 10].

    An even kernel with ``padding="same"`` pads one pixel more below and on the right; a stride of 2 on an even size
    pads only there, once written as ``F.pad`` before the convolution and once before the pooling.
    """

    def __init__(self) -> None:
        super().__init__()
        self.even = nn.Conv2d(1, 16, 4, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.strided = nn.Conv2d(16, 32, 3, stride=2)
        self.dilated = nn.Conv2d(32, 32, (2, 5), padding="same", dilation=(3, 1), groups=4)
        self.fc = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.even(x)))
        x = F.relu(self.strided(F.pad(x, (0, 1, 0, 1))))
        x = F.relu(self.dilated(x))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=float("-inf")), 3, stride=2)
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


def _image_source(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, int, int], batch: int, seed: int, output: str
) -> Source:
    with seeded(seed):
        module = make().eval()
        # Small images are enough for statistics.
        settle(module, seed, torch.randn(8, shape[0], min(shape[1], 64), min(shape[2], 64)))
        sample = torch.randn(batch, *shape)
    argument = next(iter(inspect.signature(module.forward).parameters))
    return Source(name, module, (sample,), {}, {argument: {0: "batch"}}, (output,), f"zoo, random weights, seed {seed}")


def _torchvision_source(name: str, batch: int, size: int, seed: int, **keywords: Any) -> Source:
    models = import_torchvision().models
    shape = (3, size, size)
    return _image_source(
        name, lambda: models.get_model(name, weights=None, **keywords), shape, batch, seed, output="logits"
    )


def _segmentation_source(name: str, batch: int, size: int, seed: int) -> Source:
    source = _torchvision_source(name, batch, size, seed, weights_backbone=None, aux_loss=True)
    source.output_names = ()  # those of the dict that forward returns
    source.dynamic_shapes = {"x": {0: "batch", 2: "height", 3: "width"}}
    return source


@zoo_model("mnist_cnn")
def mnist_cnn(*, batch: int = DEFAULT_BATCH, seed: int = 0) -> Source:
    """MNIST classifier: 2 convolutions, batch norm, 2 linear layers"""
    return _image_source("mnist_cnn", MnistCnn, (1, 28, 28), batch, seed, output="log_probabilities")


@zoo_model("mnist_cnn_same")
def mnist_cnn_same(*, batch: int = DEFAULT_BATCH, seed: int = 0) -> Source:
    """MNIST classifier with asymmetric SAME padding"""
    return _image_source("mnist_cnn_same", MnistCnnSame, (1, 28, 28), batch, seed, output="logits")


@zoo_model("resnet18")
def resnet18(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """ResNet-18 (torchvision)"""
    return _torchvision_source("resnet18", batch, image_size, seed)


@zoo_model("resnet50")
def resnet50(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """ResNet-50 (torchvision)"""
    return _torchvision_source("resnet50", batch, image_size, seed)


@zoo_model("mobilenet_v3_large")
def mobilenet_v3_large(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """MobileNetV3-large (torchvision)"""
    return _torchvision_source("mobilenet_v3_large", batch, image_size, seed)


@zoo_model("vit_b_16")
def vit_b_16(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """ViT-B/16 (torchvision)"""
    return _torchvision_source("vit_b_16", batch, image_size, seed, image_size=image_size)


@zoo_model("efficientnet_b0")
def efficientnet_b0(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """EfficientNet-B0 (torchvision)"""
    return _torchvision_source("efficientnet_b0", batch, image_size, seed)


@zoo_model("deit_tiny")
def deit_tiny(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """DeiT-tiny, distilled: a class and a distillation token (timm)"""
    import timm

    shape = (3, image_size, image_size)
    name = "deit_tiny_distilled_patch16_224"
    make = functools.partial(timm.create_model, name, pretrained=False, img_size=image_size)
    return _image_source("deit_tiny", make, shape, batch, seed, output="logits")


@zoo_model("deeplabv3")
def deeplabv3(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """DeepLabV3 with MobileNetV3-large, with its auxiliary head (torchvision)"""
    return _segmentation_source("deeplabv3_mobilenet_v3_large", batch, image_size, seed)


@zoo_model("fcn_resnet50")
def fcn_resnet50(*, batch: int = DEFAULT_BATCH, image_size: int = 224, seed: int = 0) -> Source:
    """FCN with ResNet-50, with its auxiliary head (torchvision)"""
    return _segmentation_source("fcn_resnet50", batch, image_size, seed)


@zoo_model("vit_tiny")
def vit_tiny(*, batch: int = DEFAULT_BATCH, seed: int = 0) -> Source:
    """The architecture of ViT-B/16, 2 layers of width 32, for fast tests"""
    import_torchvision()
    from torchvision.models.vision_transformer import VisionTransformer

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    make = functools.partial(VisionTransformer, num_classes=10, **sizes)
    return _image_source("vit_tiny", make, (3, 32, 32), batch, seed, output="logits")
