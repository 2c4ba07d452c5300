"""Paddle models as paddle2onnx writes them: ``python with_paddle.py FOLDER``."""

import os
import sys
import tempfile

import paddle
from paddle import nn

paddle.seed(0)


class Residual(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(8)
        self.other = nn.Conv2D(8, 8, 3, padding=1)

    def forward(self, x):
        y = nn.functional.relu(self.norm(self.conv(x)))
        return nn.functional.adaptive_avg_pool2d(y + self.other(y), 1).flatten(1)


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", normalize_before=True)

    def forward(self, x):
        return self.layer(x)


class Recurrent(nn.Layer):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Resize(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 4, 3, padding=1)

    def forward(self, x):
        y = nn.functional.hardswish(self.conv(x))
        return nn.functional.interpolate(y, scale_factor=2, mode="bilinear") * 0.5 + 1.0


MODELS = {
    "residual": (Residual, [None, 3, 16, 16]),
    "attention": (Attention, [None, 5, 16]),
    "recurrent": (Recurrent, [2, 5, 4]),
    "resize": (Resize, [1, 3, 8, 8]),
}


def main(folder):
    for name, (build, shape) in MODELS.items():
        model = build()
        model.eval()
        with tempfile.TemporaryDirectory() as work:
            stem = os.path.join(work, name)
            try:
                paddle.onnx.export(
                    model, stem, input_spec=[paddle.static.InputSpec(shape, "float32", "x")], opset_version=13
                )
                os.replace(f"{stem}.onnx", f"{folder}/paddle2onnx_{name}.onnx")
            except Exception as error:  # paddle2onnx raises what it likes; the other models are written all the same
                print(name, repr(error)[:300])


main(sys.argv[1])
