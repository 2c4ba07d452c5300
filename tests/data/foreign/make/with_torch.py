"""Small modules as torch.onnx.export writes them, by TorchScript and by dynamo: ``python with_torch.py FOLDER``."""

import sys
import warnings

import onnx
import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.down, self.drop = nn.Conv2d(8, 8, 3, stride=2), nn.Dropout(0.2)
        self.norm.running_mean.uniform_(-0.2, 0.2), self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(nn.functional.pad(x, (1, 1, 1, 1)))))
        return self.drop(self.down(y)).mean((2, 3)) * 1.0


class Attention(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norm(x)
        q, k, v = (
            f(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(x)))


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.up, self.gate = nn.Parameter(torch.rand(16) + 0.5), nn.Linear(16, 24), nn.Linear(16, 24)

    def forward(self, x):
        y = x.to(torch.float32)
        y = self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return nn.functional.silu(self.gate(y)) * self.up(y)


class TanhGelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


class Views(nn.Module):
    def forward(self, x):
        batch, channels, height, width = x.size()
        y = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous().view(batch, -1, height, width)
        y = torch.cat([y[:, ::2], y[:, 1::2]], 1)
        mask = torch.ones(height, width, dtype=torch.bool).tril().expand(batch, channels, height, width)
        return y.masked_fill(~mask, -1.0).flatten(2).permute(0, 2, 1).unsqueeze(1).squeeze(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(30, 8),
            nn.LSTM(8, 6, bidirectional=True, batch_first=True),
            nn.Linear(12, 2),
        )

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0][:, -1])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
        )
        self.norm, self.act = nn.GroupNorm(2, 8), nn.Hardswish()

    def forward(self, x):
        a = self.act(self.a(x))
        b = self.norm(self.b(nn.functional.max_pool2d(a, 2)))
        up = nn.functional.interpolate(b, scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.cat([self.c(b), a, up], 1)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            x = self.linear(x) if x.shape[-1] == 4 else x
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3))
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(self.conv(x).transpose(1, 2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 12), nn.Linear(12, 12)
        self.two.weight.data.copy_(self.one.weight.data)

    def forward(self, x):
        return torch.sin(self.one(x)) + torch.sin(self.two(x)) + torch.sin(self.one(x)) * 2


def image():
    return torch.randn(2, 3, 8, 8)


MODELS = {
    "block": (Block, image),
    "attention": (Attention, lambda: torch.randn(2, 5, 16)),
    "rms_norm": (RMSNorm, lambda: torch.randn(2, 5, 16)),
    "tanh_gelu": (TanhGelu, lambda: torch.randn(2, 5)),
    "views": (Views, lambda: torch.randn(2, 4, 6, 6)),
    "recurrent": (Recurrent, lambda: torch.randint(0, 30, (2, 3))),
    "unet": (UNet, image),
    "branch": (Branch, lambda: torch.randn(2, 4)),
    "weight_norm": (WeightNorm, lambda: torch.randn(2, 4, 9)),
    "tied": (Tied, lambda: torch.randn(2, 12)),
}


class Scripted(nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            y = x * 2
        else:
            y = x - 1
        for i in range(3):
            y = y + float(i)
        return y


def without_paths(path):
    """The file without the long metadata of its nodes, and without stack traces, which name folders of this machine."""
    model = onnx.load(path)
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        kept = [entry for entry in node.metadata_props if "stack_trace" not in entry.key and len(entry.value) < 200]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


def main(folder):
    for name, (build, sample) in MODELS.items():
        model, x = build().eval(), sample()
        kwargs = {"input_names": ["x"], "output_names": ["y"]}
        old = f"{folder}/torchscript_{name}.onnx"
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(
            model, (x,), old, dynamo=False, opset_version=14, dynamic_axes=axes, do_constant_folding=False, **kwargs
        )
        shapes = {0: torch.export.Dim("batch")}
        new = f"{folder}/dynamo_{name}.onnx"
        torch.onnx.export(
            model,
            (x,),
            new,
            dynamo=True,
            dynamic_shapes=(shapes,),
            external_data=False,
            verbose=False,
            optimize=False,
            **kwargs,
        )
        without_paths(new)
    scripted = torch.jit.script(Scripted())
    torch.onnx.export(
        scripted,
        (torch.randn(3),),
        f"{folder}/torchscript_scripted.onnx",
        dynamo=False,
        opset_version=14,
        input_names=["x"],
    )


main(sys.argv[1])
