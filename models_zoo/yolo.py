"""A compact YOLOv5: CSP backbone, SPPF, PANet neck, decoding and non-maximum suppression in the graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, Source
from fx2onnx.sources.torchvision import import_torchvision

from .registry import zoo_model

STRIDES = (8, 16, 32)
ANCHORS = (
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)),
    ((116.0, 90.0), (156.0, 198.0), (373.0, 326.0)),
)
"""Widths and heights in pixels, three a scale. Source: YOLOv5 6.0, models/yolov5s.yaml."""
CANDIDATES = 20
"""Boxes of an image that go into non-maximum suppression."""


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    """Convolution, batch norm, SiLU; the size is kept (stride 1) or halved unless ``padding`` says otherwise."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, width: int, shortcut: bool) -> None:
        super().__init__()
        self.reduce, self.widen, self.shortcut = conv(width, width), conv(width, width, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.widen(self.reduce(x))
        return x + y if self.shortcut else y


class Csp(nn.Module):
    """Cross-stage partial: half of the channels go through the bottlenecks, half go past them."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1, shortcut: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.past, self.join = conv(inputs, half), conv(inputs, half), conv(2 * half, outputs)
        self.blocks = nn.Sequential(*(Bottleneck(half, shortcut) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.join(torch.cat((self.blocks(self.through(x)), self.past(x)), 1))
        return y


class Sppf(nn.Module):
    """Spatial pyramid pooling: three max pools of 5x5, one after the other, all of them kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce, self.join = conv(width, width // 2), conv(2 * width, width)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.reduce(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        y: Tensor = self.join(torch.cat(levels, 1))
        return y


class YoloV5(nn.Module):
    """Images [N, 3, H, W] (sizes multiples of 32) -> boxes [K, 4] as corners, scores [K], classes [K], image [K].

    K, the number of boxes kept over the whole batch, is known when the model runs.
    """

    def __init__(self, width: int = 16, classes: int = 80, least_score: float = 0.01, overlap: float = 0.45) -> None:
        super().__init__()
        w1, w2, w3, w4, w5 = (width * factor for factor in (1, 2, 4, 8, 16))
        self.stem = nn.Sequential(conv(3, w1, 6, 2, padding=2), conv(w1, w2, 3, 2), Csp(w2, w2))
        self.stage3 = nn.Sequential(conv(w2, w3, 3, 2), Csp(w3, w3, 2))
        self.stage4 = nn.Sequential(conv(w3, w4, 3, 2), Csp(w4, w4, 3))
        self.stage5 = nn.Sequential(conv(w4, w5, 3, 2), Csp(w5, w5), Sppf(w5))
        self.lateral5, self.lateral4 = conv(w5, w4), conv(w4, w3)
        self.up4, self.up3 = Csp(2 * w4, w4, shortcut=False), Csp(2 * w3, w3, shortcut=False)
        self.down3, self.down4 = conv(w3, w3, 3, 2), conv(w4, w4, 3, 2)
        self.out4, self.out5 = Csp(2 * w3, w4, shortcut=False), Csp(2 * w4, w5, shortcut=False)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.outputs = 5 + classes
        self.heads = nn.ModuleList(nn.Conv2d(channels, 3 * self.outputs, 1) for channels in (w3, w4, w5))
        self.register_buffer("anchors", torch.tensor(ANCHORS), persistent=False)
        self.least_score, self.overlap = least_score, overlap

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        levels = self.neck(images)
        predictions = torch.cat(
            [self.decode(head(x), at) for at, (head, x) in enumerate(zip(self.heads, levels, strict=True))], 1
        )
        return self.suppress(predictions)

    def neck(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """PANet: down the backbone, up with the coarse maps, down again with the fine ones."""
        c3 = self.stage3(self.stem(images))
        c4 = self.stage4(c3)
        p5 = self.lateral5(self.stage5(c4))
        p4 = self.lateral4(self.up4(torch.cat((self.upsample(p5), c4), 1)))
        n3 = self.up3(torch.cat((self.upsample(p4), c3), 1))
        n4 = self.out4(torch.cat((self.down3(n3), p4), 1))
        n5 = self.out5(torch.cat((self.down4(n4), p5), 1))
        return n3, n4, n5

    def decode(self, raw: Tensor, level: int) -> Tensor:
        """Head output [N, 3 * (5 + C), h, w] -> [N, 3 * h * w, 5 + C] with centre, size in pixels and probabilities."""
        batch, _, height, width = raw.shape
        y = raw.view(batch, 3, self.outputs, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows = torch.arange(height, device=raw.device, dtype=raw.dtype).view(1, 1, height, 1)
        columns = torch.arange(width, device=raw.device, dtype=raw.dtype).view(1, 1, 1, width)
        x_centre = (y[..., 0] * 2 - 0.5 + columns) * STRIDES[level]
        y_centre = (y[..., 1] * 2 - 0.5 + rows) * STRIDES[level]
        sizes = (y[..., 2:4] * 2) ** 2 * self.anchors[level].to(raw.dtype).view(1, 3, 1, 1, 2)
        decoded = torch.cat((x_centre.unsqueeze(-1), y_centre.unsqueeze(-1), sizes, y[..., 4:]), -1)
        return decoded.reshape(batch, -1, self.outputs)

    def suppress(self, predictions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best candidates of each image, without those that overlap a better one of the same class."""
        from torchvision.ops import nms

        best, classes = (predictions[..., 5:] * predictions[..., 4:5]).max(-1)
        scores, order = best.topk(CANDIDATES, dim=1)
        classes = classes.gather(1, order)
        boxes = predictions[..., :4].gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        half = boxes[..., 2:] / 2
        corners = torch.cat((boxes[..., :2] - half, boxes[..., :2] + half), -1)
        image = torch.arange(predictions.shape[0], device=predictions.device).unsqueeze(1).expand(-1, CANDIDATES)
        corners, scores, classes, image = corners.flatten(0, 1), scores.flatten(), classes.flatten(), image.flatten()
        # Boxes of other images and classes are moved so far apart that they cannot overlap.
        apart = (image * (self.outputs - 5) + classes).to(corners.dtype) * 8192
        kept = nms(corners + apart.unsqueeze(1), scores, self.overlap)
        kept = kept[scores[kept] > self.least_score]
        return corners[kept], scores[kept], classes[kept], image[kept]


def _spread_scores(module: YoloV5, images: Tensor) -> None:
    """Random weights that keep the size of activations, and heads scaled so that scores lie all over 0 to 1.

    Calibrated norms would blow up the small differences between images of noise, and saturated scores are equal ones,
    whose order is a matter of rounding.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    with torch.no_grad():
        for head, x in zip(module.heads, module.neck(images), strict=True):
            std, mean = torch.std_mean(head(x), (0, 2, 3))
            head.weight.div_(std[:, None, None, None])
            head.bias.sub_(mean).div_(std)


@zoo_model("yolov5")
def yolov5(*, batch: int = DEFAULT_BATCH, image_size: int = 320, width: int = 32, seed: int = 0) -> Source:
    """YOLOv5 (own definition): CSP, SPPF, PANet, decoding and NMS; width 32 is the published small one"""
    import_torchvision()
    with seeded(seed):
        module = YoloV5(width).eval()
        images = torch.rand(batch, 3, image_size, image_size)
        move_constants(module, seed)
        _spread_scores(module, images)
    return Source(
        "yolov5",
        module,
        (images,),
        {},
        {"images": {0: "batch"}},
        ("boxes", "scores", "classes", "image"),
        f"zoo, random weights, seed {seed}",
    )
