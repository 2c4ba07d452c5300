"""Adapters of PEFT: the merged model computes what base and adapter compute beside each other; others are one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fx2onnx
from fx2onnx import sources
from fx2onnx.base.errors import UserError
from fx2onnx.sources.seeding import seeded

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
IDS = torch.tensor([[1, 5, 9, 33]])
RANK = 3


def llama(folder: Path, **more: Any) -> Any:
    with seeded(0):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | more)).eval()
    model.save_pretrained(folder)
    return model


def adapter(
    folder: Path, model: Any, targets: list[str], *, rank: int = RANK, **stated: Any
) -> dict[str, torch.Tensor]:
    """A folder as PEFT writes it, with random products for the layers whose names end so; the tensors by layer and part."""
    tensors: dict[str, torch.Tensor] = {}
    with seeded(1):
        for name, layer in model.named_modules():
            if not any(f".{name}".endswith(f".{target}") for target in targets):
                continue
            rows, columns = layer.weight.shape
            parts = ("lora_A.weight", "lora_B.weight")
            if isinstance(layer, nn.Embedding):
                rows, columns, parts = columns, rows, ("lora_embedding_A", "lora_embedding_B")
            elif type(layer).__name__ == "Conv1D":
                rows, columns = columns, rows
            tensors[f"{name}.{parts[0]}"] = torch.randn(rank, columns)
            tensors[f"{name}.{parts[1]}"] = torch.randn(rows, rank)
            if stated.get("use_dora"):
                tensors[f"{name}.lora_magnitude_vector"] = torch.rand(rows) + 0.5
    folder.mkdir()
    save_file(
        {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": targets} | stated
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return tensors


def beside(model: Any, tensors: dict[str, torch.Tensor], scale: Callable[[str], float]) -> torch.Tensor:
    """The logits with the products computed beside the layers, as PEFT does without merging."""
    hooks = []
    for name, layer in model.named_modules():
        first, second = tensors.get(f"{name}.lora_A.weight"), tensors.get(f"{name}.lora_B.weight")
        if first is None or second is None:
            first, second = tensors.get(f"{name}.lora_embedding_A"), tensors.get(f"{name}.lora_embedding_B")
        if first is None or second is None:
            continue
        magnitude, by = tensors.get(f"{name}.lora_magnitude_vector"), scale(name)

        def hook(
            layer: Any,
            args: Any,
            out: Any,
            *,
            a: Any = first,
            b: Any = second,
            m: Any = magnitude,
            by: float = by,
        ) -> Any:
            x = args[0]
            added = a.T[x] @ b.T if isinstance(layer, nn.Embedding) else x @ a.T @ b.T
            if m is None:
                return out + by * added
            norm = (layer.weight + by * b @ a).norm(dim=1)
            return (out + by * added) * m / norm

        hooks.append(layer.register_forward_hook(hook))
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    for each in hooks:
        each.remove()
    return found


@pytest.mark.parametrize(
    ("targets", "stated", "scale"),
    [
        (["q_proj", "v_proj"], {}, lambda name: 6 / RANK),
        (["mlp.down_proj", "lm_head"], {"use_rslora": True}, lambda name: 6 / RANK**0.5),
        (["q_proj", "up_proj"], {"use_dora": True}, lambda name: 6 / RANK),
        (["q_proj", "k_proj"], {"alpha_pattern": {"layers.1.self_attn.k_proj": 9}},
         lambda name: (9 if name.endswith("1.self_attn.k_proj") else 6) / RANK),
        (["embed_tokens"], {}, lambda name: 6 / RANK),
    ],
)  # fmt: skip
def test_merged_as_beside_the_base(targets: list[str], stated: dict[str, Any], scale: Any, tmp_path: Path) -> None:
    model = llama(tmp_path / "base", tie_word_embeddings=True)
    tensors = adapter(tmp_path / "adapter", model, targets, **stated)
    source = sources.resolve(f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}")
    with torch.no_grad():
        found = source.module(input_ids=IDS).logits
    torch.testing.assert_close(found, beside(model, tensors, scale), rtol=1e-4, atol=1e-4)
    assert "adapter adapter" in source.origin


def test_layers_whose_weights_stand_turned(tmp_path: Path) -> None:
    with seeded(0):
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=4)
        ).eval()
    model.save_pretrained(tmp_path / "base")
    tensors = adapter(tmp_path / "adapter", model, ["c_attn"], fan_in_fan_out=True)
    source = sources.resolve(f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}")
    with torch.no_grad():
        found = source.module(input_ids=IDS).logits
    torch.testing.assert_close(found, beside(model, tensors, lambda name: 6 / RANK), rtol=1e-4, atol=1e-4)


def test_whole_weights_and_the_model_without_its_head(tmp_path: Path) -> None:
    """``modules_to_save`` takes the place of a weight; an adapter of a model with a head fits the model inside."""
    model = llama(tmp_path / "base")
    adapter(tmp_path / "adapter", model, ["q_proj"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    norm = torch.full((32,), 0.25)
    from safetensors.torch import load_file

    save_file({**load_file(path), "base_model.model.model.norm.weight": norm}, path)
    spec = f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}&task=feature-extraction"
    module = sources.resolve(spec).module
    torch.testing.assert_close(module.norm.weight, norm)
    assert not torch.equal(module.layers[0].self_attn.q_proj.weight, model.model.layers[0].self_attn.q_proj.weight)


@pytest.mark.long
def test_tokens(tmp_path: Path) -> None:
    model = llama(tmp_path / "base", max_position_embeddings=64)
    adapter(tmp_path / "adapter", model, ["q_proj", "down_proj"])
    spec = f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}"
    done = fx2onnx.export_folder(spec, tmp_path / "out", task="text-generation-with-past", verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    merged = sources.resolve(spec).module
    wanted = merged.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0)
    found = fx2onnx.load(tmp_path / "out").generate(IDS, max_new_tokens=6)
    assert found.tolist() == wanted.tolist()
    assert found.tolist() != model.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda base, folder: llama(base, hidden_size=16), "E601", "is not for this LlamaForCausalLM"),
        (lambda base, folder: llama(base, num_hidden_layers=1), "E601", r"model.layers.1.self_attn.q_proj is no layer"),
        (lambda base, folder: _said(folder, peft_type="IA3"), "E601", "its kind is 'IA3'"),
        (lambda base, folder: _said(folder, target_parameters=["w"]), "E601", "target_parameters"),
        (lambda base, folder: _said(folder, alpha_pattern={"(a+)+$": 3}), "E601", "expressions"),
        (lambda base, folder: _said(folder, lora_alpha="many"), "E302", "lora_alpha"),
        (lambda base, folder: (folder / "adapter_model.safetensors").unlink(), "E302", "has no weights"),
        (lambda base, folder: (folder / "adapter_model.safetensors").write_bytes(b"1"), "E302", "adapter_model"),
        (lambda base, folder: (folder / "adapter_config.json").unlink(), "E302", "adapter_config.json"),
    ],
)  # fmt: skip
def test_what_does_not_fit(change: Callable[[Path, Path], Any], code: str, message: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    adapter(folder, llama(base), ["q_proj"])
    change(base, folder)
    with pytest.raises(UserError, match=message) as raised:
        sources.resolve(f"hf:{base}?adapter={folder}")
    assert raised.value.code == code


def _said(folder: Path, **stated: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))


@pytest.mark.parametrize("weights", ["reference", "none"])
def test_weights_that_cannot_be_added_to(weights: str, tmp_path: Path) -> None:
    adapter(tmp_path / "adapter", llama(tmp_path / "base"), ["q_proj"])
    with pytest.raises(UserError, match="does not go with") as raised:
        sources.resolve(f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}", weights=weights)
    assert raised.value.code == "E001"


def test_an_adapter_alone_says_how_it_is_given(tmp_path: Path) -> None:
    adapter(tmp_path / "adapter", llama(tmp_path / "base"), ["q_proj"])
    with pytest.raises(UserError, match=r"hf:BASE\?adapter="):
        sources.resolve(f"hf:{tmp_path / 'adapter'}")
