"""Caches of int8: the file is the module, tokens are those of transformers, and what has no such cache is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.int8 import rounded
from fx2onnx.sources import resolve

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 60,
    "num_hidden_layers": 2,
}  # fmt: skip
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "moe_intermediate_size": 16,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "head_dim": 16, "num_experts_per_tok": 2,
}  # fmt: skip


def spec_of(folder: Path, model: str = "llama", **more: Any) -> str:
    """A folder with a config, for random weights."""
    from transformers import AutoConfig

    AutoConfig.for_model(model, **SIZES | more).save_pretrained(folder)
    return f"hf:{folder}"


def test_numbers_are_within_half_a_step_and_zeros_stay() -> None:
    numbers = torch.randn(2, 3, 5, 8) * 10 ** torch.linspace(-3, 3, 5)[:, None]
    numbers[0, 0, 0] = 0
    cells, scale = rounded(numbers)
    assert cells.dtype == torch.int8
    assert scale.shape == (2, 3, 5, 1)
    assert bool(((cells * scale - numbers).abs() <= scale * 0.5001).all())


@pytest.mark.long
@pytest.mark.parametrize(("model", "more"), [("llama", {}), ("mistral", {"sliding_window": 6}), ("qwen3_next", HYBRID)])
def test_the_file_is_the_module_and_gives_the_tokens_of_transformers(
    tmp_path: Path, model: str, more: dict[str, Any]
) -> None:
    spec = spec_of(tmp_path / "c", model, **more)
    done = fx2onnx.export_folder(spec, tmp_path / "m", kv="int8", weights="random", verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    assert any("logits of" in note for note in done.notes)
    ids = np.array([[5, 40, 12, 33, 7, 21, 9, 3]])
    module = resolve(f"{spec}?task=causal-lm", weights="random").module
    wanted = module.generate(torch.from_numpy(ids), max_new_tokens=8, do_sample=False)  # type: ignore[operator]
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "m", engine=engine)
        states = {state.name: state.dtype for state in loaded.main.form.cache}
        assert {states[f"1.{part}"] for part in ("key", "value")} == {"int8"}
        assert states["1.key_scale"] == "float32"
        assert loaded.generate(ids, max_new_tokens=8).tolist() == wanted.tolist()
        if "prompt_model" not in loaded.graphs:
            first = loaded(ids[:, :3])
            behind = loaded(ids[:, 3:], past_key_values=first.past_key_values)
            np.testing.assert_allclose(behind.logits, loaded(ids).logits[:, 3:], rtol=1e-5, atol=1e-6)
            if model == "mistral":
                with pytest.raises(UserError, match="attention_mask"):
                    loaded(ids[:, :1], past_key_values=behind.past_key_values)


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"cache": "static"}, "E001", "--cache static"),
        ({"fused": True}, "E001", "--fused"),
        ({"target": "onnxruntime-genai"}, "E001", "--target onnxruntime-genai"),
        ({"task": "text-generation"}, "E001", "--task text-generation"),
        ({"kv": "int3"}, "E001", "int8"),
        (
            {
                "model": "mamba2?hidden_size=32&num_heads=4&head_dim=16&n_groups=1&state_size=8&num_hidden_layers=1&vocab_size=60"
            },
            "E601",
            "without layers of keys and values",
        ),
        (
            {
                "model": "t5?d_model=32&d_ff=32&num_layers=1&num_heads=2&vocab_size=60",
                "task": "text2text-generation-with-past",
            },
            "E601",
            "only decoders",
        ),
    ],
)
def test_what_has_no_such_cache_is_refused(tmp_path: Path, options: dict[str, Any], code: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        fx2onnx.export_folder(f"hf:{options.pop('model', 'llama')}", tmp_path / "m", **{"kv": "int8"} | options)
    assert caught.value.code == code
    assert not list(tmp_path.iterdir())


def test_a_model_that_reads_cells_without_their_scales_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fx2onnx.decoding.cache.int8.LARGEST_ERROR", 0)
    with pytest.raises(UserError, match="logits change") as caught:
        fx2onnx.export_folder(spec_of(tmp_path), tmp_path / "m", kv="int8", weights="random", logits="last")
    assert caught.value.code == "E601"
