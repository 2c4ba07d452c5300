"""The models that ``studies.training_coverage`` trains: architectures as published, on small images and short
sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_zoo.registry import build

SEED = 0
VOCABULARY = 500


@dataclass
class Trained:
    """A module, its sample call by name, and how it is trained. ``options`` are further ones of ``export_training``."""

    module: nn.Module
    inputs: dict[str, Tensor]
    loss: Callable[..., Tensor]
    targets: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    sgd_rate: float = 1e-2
    adamw_rate: float = 1e-4

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained."""
        left = tuple(self.options.get("held", ()))
        named = self.module.named_parameters()
        return {name: value for name, value in named if value.requires_grad and not name.startswith(left or "\0")}

    @property
    def noisy(self) -> list[str]:
        """Inputs to which noise is added from step to step: those that need not lie between 0 and 1."""
        return [name for name, value in self.inputs.items() if value.is_floating_point() and value.min() < 0]

    def value(self, module: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
        """The loss of ``module`` on inputs and targets by name."""
        outputs = module(**{name: tensors[name] for name in self.inputs})
        return self.loss(outputs, *(tensors[name] for name in self.targets))


def _labels(count: int, classes: int) -> dict[str, Tensor]:
    return {"labels": torch.randint(0, classes, (count,))}


def _logits(outputs: Any) -> Tensor:
    found = getattr(outputs, "logits", outputs)
    assert isinstance(found, Tensor)
    return found


def classified(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy of a class for each row."""
    return F.cross_entropy(_logits(outputs), labels)


def continued(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy of a class for each place of a sequence."""
    return F.cross_entropy(_logits(outputs).flatten(0, 1), labels.flatten())


def mnist_cnn() -> Trained:
    """zoo:mnist_cnn"""
    module = build("mnist_cnn").module
    return Trained(module, {"x": torch.randn(16, 1, 28, 28)}, F.nll_loss, _labels(16, 10))


BRANCH = 0.2
"""The initial weight of the last batch norm of a residual branch: with 1, float32 itself is off by a tenth in so deep a
network."""


def _residual(name: str) -> Trained:
    found = _torchvision(name)
    for part in found.module.modules():
        if type(part).__name__ in ("BasicBlock", "Bottleneck"):
            last = getattr(part, "bn3", None) or part.bn2
            nn.init.constant_(last.weight, BRANCH)  # type: ignore[arg-type, union-attr]
    return found


def _torchvision(
    name: str, batch: int = 8, size: int = 64, sgd_rate: float = 1e-3, adamw_rate: float = 1e-5
) -> Trained:
    import torchvision

    module = torchvision.models.get_model(name, weights=None, num_classes=20)
    inputs = {"x": torch.randn(batch, 3, size, size)}
    return Trained(module, inputs, classified, _labels(batch, 20), sgd_rate=sgd_rate, adamw_rate=adamw_rate)


def _transformers() -> Any:

    import transformers

    return transformers


def vit() -> Trained:
    """timm vit_small_patch16"""
    _transformers()
    import timm

    module = timm.create_model("vit_small_patch16_224", pretrained=False, img_size=64, num_classes=20)
    return Trained(module, {"x": torch.randn(8, 3, 64, 64)}, classified, _labels(8, 20))


def _ids(batch: int = 4, length: int = 24) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))


def bert() -> Trained:
    """BertForSequenceClassification, 4 layers of 256, padded"""
    library = _transformers()
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = library.BertConfig(vocab_size=VOCABULARY, num_labels=5, **sizes)
    mask = torch.ones(4, 24, dtype=torch.int64)
    mask[-1, 16:] = 0
    inputs = {"input_ids": _ids(), "attention_mask": mask}
    return Trained(library.BertForSequenceClassification(config), inputs, classified, _labels(4, 5))


def gpt2() -> Trained:
    """GPT2LMHeadModel, 4 layers of 256, tied head"""
    library = _transformers()
    config = library.GPT2Config(vocab_size=VOCABULARY, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    return Trained(library.GPT2LMHeadModel(config), {"input_ids": _ids()}, continued, {"labels": _ids()})


def t5() -> Trained:
    """T5ForConditionalGeneration, 3 + 3 layers of 256, tied"""
    library = _transformers()
    config = library.T5Config(
        vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=512, num_layers=3, num_heads=4, use_cache=False
    )
    inputs = {"input_ids": _ids(), "decoder_input_ids": _ids(length=16)}
    return Trained(library.T5ForConditionalGeneration(config), inputs, continued, {"labels": _ids(length=16)})


def llama() -> Trained:
    """LlamaForCausalLM, 4 layers of 256, grouped queries"""
    library = _transformers()
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 688}
    config = library.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, use_cache=False, **sizes)
    return Trained(library.LlamaForCausalLM(config), {"input_ids": _ids()}, continued, {"labels": _ids()})


def lstm_tagger() -> Trained:
    """zoo:lstm_tagger, 2 bidirectional layers"""
    source = build("lstm_tagger", batch=4, seq=12)
    labels = torch.randint(0, 9, (4, 12))
    return Trained(source.module, {"tokens": source.args[0]}, continued, {"labels": labels}, sgd_rate=0.1)


def gru_seq2seq() -> Trained:
    """zoo:gru_seq2seq, attention between encoder and decoder"""
    source = build("gru_seq2seq", batch=4, seq=12)
    inputs = dict(zip(("source", "target"), source.args, strict=True))
    return Trained(source.module, inputs, continued, {"labels": source.args[1]}, sgd_rate=0.1)


def diffusion() -> Trained:
    """zoo:diffusion_unet, the loss of predicted noise"""
    source = build("diffusion_unet", batch=2)
    inputs = dict(zip(("latent", "timestep", "text"), source.args, strict=True))
    noise = {"noise": torch.randn_like(source.args[0])}
    return Trained(source.module, inputs, F.mse_loss, noise)


class Autoencoder(nn.Module):
    """A variational autoencoder of images: the noise is an input."""

    def __init__(self, width: int = 32, latent: int = 16) -> None:
        super().__init__()
        self.down = nn.Sequential(
            *(nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2), nn.Flatten()),
        )
        self.moments, self.start = nn.Linear(2 * width * 49, 2 * latent), nn.Linear(latent, 2 * width * 49)
        self.up = nn.Sequential(
            *(nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)),
            *(nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Sigmoid()),
        )

    def forward(self, image: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.moments(self.down(image)).chunk(2, -1)
        latent = mean + noise * (0.5 * log_variance).exp()
        return self.up(self.start(latent).unflatten(1, (-1, 7, 7))), mean, log_variance


def evidence(outputs: tuple[Tensor, Tensor, Tensor], original: Tensor) -> Tensor:
    """The negative evidence lower bound, by image."""
    made, mean, log_variance = outputs
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return (F.binary_cross_entropy(made, original, reduction="sum") + divergence) / len(original)


def vae() -> Trained:
    """convolutional VAE of 28 x 28 images"""
    image = torch.rand(8, 1, 28, 28)
    inputs = {"image": image, "noise": torch.randn(8, 16)}
    return Trained(Autoencoder(), inputs, evidence, {"original": image}, sgd_rate=1e-4)


class Adversaries(nn.Module):
    """A DCGAN of 32 x 32 images: what the discriminator says of real images and of generated ones."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [8 * width, 4 * width, 2 * width]
        raising = [
            part
            for wide, thin in zip(sizes, [*sizes[1:], width], strict=True)
            for part in (nn.ConvTranspose2d(wide, thin, 4, 2, 1, bias=False), nn.BatchNorm2d(thin), nn.ReLU())
        ]
        self.generator = nn.Sequential(
            *(nn.Linear(32, sizes[0] * 16), nn.Unflatten(1, (sizes[0], 4, 4))), *raising[:6], raising[6], nn.Tanh()
        )
        self.paint = nn.Conv2d(width, 3, 3, padding=1)
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False)),
            *(nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2 * width * 64, 1)),
        )

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        made = self.paint(self.generator(noise)).tanh()
        return self.discriminator(made), self.discriminator(real)


def told_apart(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """The discriminator's loss."""
    made, real = outputs
    return F.softplus(made).mean() + F.softplus(-real).mean()


def fooled(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """The generator's loss."""
    return F.softplus(-outputs[0]).mean()


def gan(loss: Callable[..., Tensor], held: tuple[str, ...]) -> Trained:
    """One of the two steps of a GAN: the other's parameters are inputs that stay."""
    inputs = {"noise": torch.randn(8, 32), "real": torch.rand(8, 3, 32, 32) * 2 - 1}
    return Trained(Adversaries(), inputs, loss, {}, {"held": held})


class GraphNetwork(nn.Module):
    """Messages along edges, added up at each node, and the mean over each graph's nodes."""

    def __init__(self, width: int = 32, layers: int = 3, graphs: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 5)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(layers))
        self.graphs = graphs

    def forward(self, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        x = self.first(nodes)
        start, end = edges
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.gelu(message(torch.cat((x[start], x[end]), -1)))
            x = update(torch.zeros_like(x).index_add(0, end, sent), x)
        places = graph.unsqueeze(-1).expand_as(x)
        pooled = x.new_zeros(self.graphs, x.size(1)).scatter_reduce(0, places, x, "mean", include_self=False)
        scores: Tensor = self.last(pooled)
        return scores


def graph_network() -> Trained:
    """message passing by scatter, GRU updates"""
    graph = torch.arange(24) % 4
    inputs = {"nodes": torch.randn(24, 6), "edges": torch.randint(0, 24, (2, 60)), "graph": graph}
    return Trained(GraphNetwork(), inputs, F.cross_entropy, _labels(4, 5), sgd_rate=0.1)


MODELS: dict[str, tuple[str, Callable[[], Trained]]] = {
    "mnist_cnn": ("zoo, 16 images of 28", mnist_cnn),
    "resnet18": ("torchvision, 8 images of 64", lambda: _residual("resnet18")),
    "resnet50": ("torchvision, 8 images of 64", lambda: _residual("resnet50")),
    "mobilenet_v3_large": ("torchvision, 8 images of 64", lambda: _torchvision("mobilenet_v3_large")),
    "efficientnet_b0": ("torchvision, 8 images of 64", lambda: _torchvision("efficientnet_b0", sgd_rate=1e-4)),
    "vit_small": ("timm, 8 images of 64", vit),
    "convnext_tiny": ("torchvision, 4 images of 64", lambda: _torchvision("convnext_tiny", batch=4)),
    "bert": ("transformers, 4 layers of 256, 4 x 24 tokens", bert),
    "gpt2": ("transformers, 4 layers of 256, 4 x 24 tokens", gpt2),
    "t5": ("transformers, 3 + 3 layers of 256, 4 x 24 tokens", t5),
    "llama": ("transformers, 4 layers of 256, 4 x 24 tokens", llama),
    "lstm_tagger": ("zoo, 2 bidirectional layers, 4 x 12 tokens", lstm_tagger),
    "gru_seq2seq": ("zoo, attention, 4 x 12 tokens", gru_seq2seq),
    "diffusion_unet": ("zoo, loss of the predicted noise", diffusion),
    "vae": ("convolutions, 8 images of 28", vae),
    "gan_discriminator": ("DCGAN, 8 images of 32", lambda: gan(told_apart, ("generator.", "paint."))),
    "gan_generator": ("DCGAN, 8 images of 32", lambda: gan(fooled, ("discriminator.",))),
    "graph_network": ("messages by index_add, GRU updates, means by scatter_reduce", graph_network),
}
"""The models by name, each with a line on its data."""


def trained(name: str) -> Trained:
    """Always the same numbers, with nothing drawn in the forward pass."""
    torch.manual_seed(SEED)
    found = MODELS[name][1]()
    found.module.train()
    for part in found.module.modules():
        if type(part).__name__ in ("StochasticDepth", "DropPath"):
            part.p = part.drop_prob = 0.0  # type: ignore[assignment]
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.RNNBase):
            part.dropout = 0.0
    config = getattr(found.module, "config", None)
    for key in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout_rate"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    for part in found.module.modules():
        for key in ("dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)
    return found
