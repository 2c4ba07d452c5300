"""Small networks of each kind that is trained, with a batch, a loss and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Task:
    """What is trained on what. ``dynamic`` are dynamic_shapes, tried at the sizes of ``others``."""

    module: nn.Module
    args: tuple[Any, ...]
    loss: Callable[..., Tensor]
    targets: tuple[Tensor, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: Any = None


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.left, self.left_norm = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.short, self.short_norm = nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(self.left_norm(self.left(x)) + self.short_norm(self.short(x)))
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 1, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, noisy: Tensor) -> Tensor:
        high = F.silu(self.down(noisy))
        low = F.silu(self.norm(self.middle(F.avg_pool2d(high, 2))))
        return self.last(torch.cat([high, self.up(low)], 1))  # type: ignore[no-any-return]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0]).transpose(1, 2)  # type: ignore[no-any-return]


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.encoder, self.decoder = nn.GRU(6, 7, 2, batch_first=True), nn.GRU(6, 7, 2, batch_first=True)
        self.head = nn.Linear(7, 20)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        state = self.encoder(self.words(source))[1]
        return self.head(self.decoder(self.words(before), state)[0]).transpose(1, 2)  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 6), nn.Linear(3, 12)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, deviation = self.encoder(x).chunk(2, -1)
        return torch.sigmoid(self.decoder(mean + noise * (0.5 * deviation).exp())), mean, deviation


def autoencoder_loss(outputs: tuple[Tensor, Tensor, Tensor], image: Tensor) -> Tensor:
    made, mean, deviation = outputs
    divergence = -0.5 * (1 + deviation - mean**2 - deviation.exp()).sum()
    return F.binary_cross_entropy(made, image, reduction="sum") + divergence


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = layer(x)
            gathered = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = F.elu(x + gathered)
        return x


def _transformer(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers as hf

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = torch.randint(0, 30, (2, 6))
    if kind == "bert":
        config = hf.BertConfig(vocab_size=30, num_labels=3, max_position_embeddings=16, **sizes)
        return hf.BertForSequenceClassification(config), {"input_ids": ids}
    if kind == "gpt2":
        config = hf.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16)
        return hf.GPT2LMHeadModel(config), {"input_ids": ids}
    if kind == "llama":
        config = hf.LlamaConfig(vocab_size=30, num_key_value_heads=1, max_position_embeddings=16, **sizes)
        return hf.LlamaForCausalLM(config), {"input_ids": ids}
    if kind == "t5":
        config = hf.T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0)
        return hf.T5ForConditionalGeneration(config), {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    config = hf.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **sizes)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 1, 8, 8)}


def classified(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, labels)


def continued(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())


def transformer(kind: str) -> Task:
    module, inputs = _transformer(kind)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "dropout_prob", None), float):  # of the attention of transformers 4
            part.dropout_prob = 0.0
    for name in ("attention_dropout", "attn_pdrop", "dropout_rate", "attention_probs_dropout_prob"):
        if hasattr(module.config, name):
            setattr(module.config, name, 0.0)
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    names = kind in ("gpt2", "llama", "t5")
    labels = torch.randint(0, 30, (2, 6)) if names else torch.tensor([0, 2])
    return Task(module, (), continued if names else classified, (labels,), inputs)


def _cnn() -> Task:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 5)
    )
    dynamic = {"input": {0: "batch"}, "target": {0: "batch"}}
    return Task(module, (torch.randn(4, 1, 8, 8),), F.cross_entropy, (torch.randint(0, 5, (4,)),), dynamic=dynamic)


TASKS: dict[str, Callable[[], Task]] = {
    "cnn": _cnn,
    "resnet": lambda: Task(Residual(), (torch.randn(4, 3, 32, 32),), nn.CrossEntropyLoss(label_smoothing=0.1), (torch.randint(0, 5, (4,)),)),
    "unet": lambda: Task(UNet(), (torch.randn(2, 1, 8, 8),), F.mse_loss, (torch.randn(2, 1, 8, 8),)),
    "lstm": lambda: Task(Tagger(), (torch.randint(0, 20, (3, 5)),), F.cross_entropy, (torch.randint(0, 4, (3, 5)),)),
    "gru": lambda: Task(Translator(), (torch.randint(0, 20, (3, 5)), torch.randint(0, 20, (3, 4))), F.cross_entropy, (torch.randint(0, 20, (3, 4)),)),
    "vae": lambda: Task(Autoencoder(), (torch.rand(4, 12), torch.randn(4, 3)), autoencoder_loss, (torch.rand(4, 12),)),
    "graph": lambda: Task(
        GraphNet(), (torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])), F.cross_entropy,
        (torch.tensor([0, 1, 2, 0, 1]),),
    ),
    **{kind: lambda kind=kind: transformer(kind) for kind in ("vit", "bert", "gpt2", "llama", "t5")},
}  # fmt: skip


def task(name: str) -> Task:
    """Always the same numbers."""
    torch.manual_seed(0)
    return TASKS[name]()
