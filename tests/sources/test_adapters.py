"""Adapters of PEFT, merged or switched at run time: the model computes what base and adapter compute beside each other; others are
one clear error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fx2onnx
import fx2onnx.runner
from fx2onnx import sources
from fx2onnx.base.errors import UserError
from fx2onnx.files import onnx_adapter
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


def test_copies_of_the_base_in_an_adapter(tmp_path: Path) -> None:
    """PEFT saves tables of words that it changes beside the products; a copy that differs from the base takes its place."""
    from safetensors.torch import load_file

    model = llama(tmp_path / "base")
    tensors = adapter(tmp_path / "adapter", model, ["lm_head"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    for factor in (1, 2):
        copy = model.lm_head.weight.detach() * factor
        save_file({**load_file(path), "base_model.model.lm_head.base_layer.weight": copy}, path)
        merged = sources.resolve(f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}").module
        product = tensors["lm_head.lora_B.weight"] @ tensors["lm_head.lora_A.weight"] * 6 / RANK
        torch.testing.assert_close(merged.lm_head.weight, copy + product)
    with pytest.raises(UserError, match=r"whole weight: lm_head\.weight"):
        export(tmp_path / "base", tmp_path / "out", {"one": tmp_path / "adapter"})


def export(base: Path, out: Path, adapters: dict[str, Path], **more: Any) -> Any:
    return fx2onnx.export_folder(f"hf:{base}", out, adapters=adapters, verify=True, **more)


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, three adapters and the exported model in ``out``."""
    folder = tmp_path_factory.mktemp("switched")
    model = llama(folder / "base", max_position_embeddings=64)
    adapter(folder / "one", model, ["q_proj", "down_proj"])
    adapter(folder / "dora", model, ["q_proj", "lm_head"], rank=5, use_dora=True)
    adapter(folder / "words", model, ["embed_tokens"], rank=1)
    done = export(folder / "base", folder / "out", {name: folder / name for name in ("one", "dora", "words")})
    assert all(verdict.ok for verdict in done.verdicts.values())
    return folder


@pytest.mark.long
@pytest.mark.parametrize("engine", ["onnxruntime", "runner"])
def test_switched_as_merged(engine: str, switched: Path) -> None:
    """In both engines, with ranks and lengths other than the sample's, and one after the other."""
    model, seen = fx2onnx.load(switched / "out", engine=engine), set()
    for name in ("one", None, "dora", "words", "one"):
        merged = sources.resolve(f"hf:{switched / 'base'}{f'?adapter={switched / name}' if name else ''}").module
        wanted = merged.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0)
        found = model.generate(IDS, max_new_tokens=5, adapter=name)
        assert found.tolist() == wanted.tolist()
        seen.add(str(found.tolist()))
        with torch.no_grad():
            logits = merged(IDS.repeat(2, 1)).logits
        torch.testing.assert_close(model(IDS.repeat(2, 1), adapter=name).logits, logits, rtol=1e-4, atol=1e-4)
    assert len(seen) == 4


@pytest.mark.long
def test_adapter_files_are_those_of_onnxruntime(switched: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    feeds = {"input_ids": IDS.numpy(), "attention_mask": IDS.numpy() * 0 + 1, "position_ids": np.arange(4)[None]}
    feeds |= {
        f"past_key_values.{i}.{end}": np.zeros((1, 4, 0, 8), np.float32) for i in (0, 1) for end in ("key", "value")
    }
    for module in (onnxruntime, fx2onnx.runner):
        written = module.AdapterFormat.read_adapter(str(switched / "out" / "dora.onnx_adapter"))
        written.export_adapter(str(tmp_path / "copy.onnx_adapter"))
        loaded, options = module.LoraAdapter(), module.RunOptions()
        loaded.Load(str(tmp_path / "copy.onnx_adapter"))
        options.add_active_adapter(loaded)
        session = module.InferenceSession(str(switched / "out" / "model.onnx"))
        (found,) = session.run(["logits"], feeds, options)
        wanted = fx2onnx.load(switched / "out")(IDS, adapter="dora").logits
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_damaged_adapter_files(tmp_path: Path) -> None:
    """Another byte or an early end is E302, or another number, and never another error."""
    path = tmp_path / "a.onnx_adapter"
    onnx_adapter.write(
        path, onnx_adapter.Adapter({"a": np.ones((2, 3), np.float32), "b": np.zeros((0, 4), np.float16)})
    )
    whole = path.read_bytes()
    codes = set()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        for data in (changed, whole[:place]):
            path.write_bytes(data)
            try:
                onnx_adapter.read(path)
            except UserError as error:
                codes.add(error.code)
    assert codes == {"E302"}


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [{"cache": "static"}, {"fused": True}, {"target": "onnxruntime-genai"}, {"dtype": "float16"}, {"kv": "int8"}, {"logits": "last"}],
)  # fmt: skip
def test_switched_in_other_forms(more: dict[str, Any], switched: Path, tmp_path: Path) -> None:
    done = export(switched / "base", tmp_path / "out", {"one": switched / "one"}, **more)
    assert all(verdict.ok for verdict in done.verdicts.values())
    model = fx2onnx.load(tmp_path / "out")
    merged = sources.resolve(f"hf:{switched / 'base'}?adapter={switched / 'one'}").module
    wanted = merged.generate(IDS, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert model.generate(IDS, max_new_tokens=5, adapter="one").tolist() == wanted.tolist()
    assert model.generate(IDS, max_new_tokens=5).tolist() != wanted.tolist()


@pytest.mark.long
def test_switched_in_an_encoder_and_its_decoder(tmp_path: Path) -> None:
    """Each graph takes the products of the layers that it calls: keys of cross attention are those of the encoder's graph."""
    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    with seeded(0):
        config = transformers.T5Config(**sizes, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "base")
    adapter(tmp_path / "adapter", model, ["q", "v"])
    task = "text2text-generation-with-past"
    done = export(tmp_path / "base", tmp_path / "out", {"a": tmp_path / "adapter"}, task=task)
    assert all(verdict.ok for verdict in done.verdicts.values())
    merged = sources.resolve(f"hf:{tmp_path / 'base'}?adapter={tmp_path / 'adapter'}&task=seq2seq-lm").module
    given = {"input_ids": IDS, "attention_mask": IDS * 0 + 1, "decoder_input_ids": torch.tensor([[0, 4]])}
    with torch.no_grad():
        logits = merged(**given).logits
    loaded = fx2onnx.load(tmp_path / "out")
    torch.testing.assert_close(loaded(**given, adapter="a").logits, logits, rtol=1e-4, atol=1e-4)
    wanted = merged.generate(IDS, max_new_tokens=5, do_sample=False)
    assert loaded.generate(IDS, max_new_tokens=5, adapter="a").tolist()[0][: wanted.shape[1]] == wanted.tolist()[0]


@pytest.mark.long
@pytest.mark.parametrize("layout", ["Q8_0", "Q4_K"])
def test_switched_over_quantized_weights(layout: str, tmp_path: Path) -> None:
    """Layers that keep the blocks of a GGUF file have no weight to merge into, and take products beside it."""
    gguf_files = pytest.importorskip("tests.sources.gguf_files", reason="gguf is not installed")
    model = gguf_files.write(tmp_path / "base.gguf", "llama", layout)
    tensors = adapter(tmp_path / "adapter", model, ["q_proj", "down_proj"])
    source = f"gguf:{tmp_path / 'base.gguf'}"
    done = fx2onnx.export_folder(source, tmp_path / "out", adapters={"a": tmp_path / "adapter"}, verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    found = fx2onnx.load(tmp_path / "out")(IDS, adapter="a").logits
    torch.testing.assert_close(found, beside(model, tensors, lambda name: 6 / RANK), rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match=r"(?s)quantized weights.*--adapters"):
        sources.resolve(f"{source}?adapter={tmp_path / 'adapter'}")


@pytest.mark.parametrize(
    ("adapters", "more", "code", "message"),
    [
        ({"one": "other"}, {}, "E601", "is not for this LlamaForCausalLM"),
        ({"one": "nowhere"}, {}, "E302", "no adapter folder"),
        ({"../one": "other"}, {}, "E001", "no name of letters"),
        ({"one": "other"}, {"task": "text-generation"}, "E001", "with-past"),
    ],
)
def test_adapters_that_cannot_be_switched(
    adapters: dict[str, str], more: dict[str, Any], code: str, message: str, tmp_path: Path
) -> None:
    llama(tmp_path / "base")
    adapter(tmp_path / "other", llama(tmp_path / "larger", hidden_size=64), ["q_proj"])
    with pytest.raises(UserError, match=message) as raised:
        export(tmp_path / "base", tmp_path / "out", {name: tmp_path / at for name, at in adapters.items()}, **more)
    assert raised.value.code == code
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_an_adapter_that_the_folder_lacks(switched: Path) -> None:
    with pytest.raises(UserError, match="has no adapter 'three'") as raised:
        fx2onnx.load(switched / "out").generate(IDS, adapter="three")
    assert raised.value.code == "E401"
    assert "one, dora, words" in str(raised.value)


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
        (lambda base, folder: _said(folder, lora_alpha=float("nan")), "E302", "lora_alpha is nan"),
        (lambda base, folder: _said(folder, lora_alpha=float("inf")), "E302", "lora_alpha is inf"),
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


@pytest.mark.parametrize("base", ["meta-llama/Llama-3", None])
def test_an_adapter_alone_names_the_model_that_it_is_of(base: str | None, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))
    with pytest.raises(UserError, match=r"has no config\.json") as caught:
        sources.resolve(f"hf:{tmp_path}")
    assert f"hf:BASE?adapter={tmp_path}" in caught.value.next[0]
    assert caught.value.next[0].endswith(base or "was trained on")
