"""Caches of 8 bits and of fixed size: the file is the module, tokens are those of transformers, and what has no such cache is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.cells import SMALLEST, Cells
from fx2onnx.manifest.form import FIXED
from fx2onnx.sources import resolve

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 60,
    "num_hidden_layers": 2,
}  # fmt: skip
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "moe_intermediate_size": 16,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "head_dim": 16, "num_experts_per_tok": 2,
}  # fmt: skip

PARALLEL = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
    "head_dim": 8,
}
LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "num_local_experts": 2}
BY_TURNS = {
    "layer_types": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8,
    "n_routed_experts": 4, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "n_groups": 1, "chunk_size": 4,
    "head_dim": 8, "num_hidden_layers": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def spec_of(folder: Path, model: str = "llama", **more: Any) -> str:
    """A folder with a config, for random weights."""
    from transformers import AutoConfig

    AutoConfig.for_model(model, **SIZES | more).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.5001), ("fp8", 16.001)])
def test_numbers_are_within_half_a_step_and_zeros_stay(kind: str, share: float) -> None:
    """The largest float of 8 bits, 448, is 32 from the next."""
    numbers = torch.randn(2, 3, 5, 8) * 10 ** torch.linspace(-3, 3, 5)[:, None]
    numbers[0, 0, 0] = 0
    cells, scale = Cells(kind).of_layer(0)("keys", numbers)
    assert cells.dtype.itemsize == 1
    assert scale.shape == (2, 3, 5, 1)
    assert bool(((cells.float() * scale - numbers).abs() <= scale * share).all())


def test_constant_scales_are_those_of_the_calibration_and_larger_numbers_are_cut() -> None:
    from transformers import DynamicCache

    cache, keys = DynamicCache(), torch.randn(2, 3, 5, 8)
    keys[:, 0], keys[..., 4] = 0, 9  # with room for 13.5
    cache.update(keys, -keys, 0)
    for kind, shape, largest in (("int8:head", (1, 3, 1, 1), 127), ("fp8:channel", (1, 3, 1, 8), 448)):
        rounding = Cells(kind).calibrated(cache).of_layer(0)
        cells, scale = rounding("values", -2 * keys)
        assert scale.shape == shape
        assert scale.min() >= SMALLEST
        assert cells.float().abs().max() == largest
        assert bool((cells.float() * scale)[..., 4][..., None].isclose(torch.tensor(-13.5)).all())


CACHES: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {}, "int8"), ("mistral", {"sliding_window": 6}, "int8"), ("qwen3_next", HYBRID, "int8"), ("llama", {}, "fp8"),
    ("mistral", {"sliding_window": 6}, "fp8:head"), ("qwen3_next", HYBRID, "int8:channel"),
    ("falcon_h1", PARALLEL, "int8"), ("falcon_h1", PARALLEL, "fp8:head"),
    ("minimax", LINEAR_FIRST, "int8:channel"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("model", "more", "kv"), CACHES)
def test_the_file_is_the_module_and_gives_the_tokens_of_transformers(
    tmp_path: Path, model: str, more: dict[str, Any], kv: str
) -> None:
    spec = spec_of(tmp_path / "c", model, **more)
    done = fx2onnx.export_folder(spec, tmp_path / "m", kv=kv, weights="random", verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    assert any(f"with {kv} keys and values, logits of" in note for note in done.notes)
    ids = np.array([[5, 40, 12, 33, 7, 21, 9, 3]])
    module = resolve(f"{spec}?task=causal-lm", weights="random").module
    wanted = module.generate(torch.from_numpy(ids), max_new_tokens=8, do_sample=False)  # type: ignore[operator]
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "m", engine=engine)
        states = {state.name: state.dtype for state in loaded.main.form.cache}
        assert {states[f"1.{part}"] for part in ("key", "value")} == {"int8" if "int8" in kv else "float8_e4m3fn"}
        assert states.get("1.key_scale", "") == ("" if ":" in kv else "float32")
        assert loaded.generate(ids, max_new_tokens=8).tolist() == wanted.tolist()
        if "prompt_model" not in loaded.graphs:
            first = loaded(ids[:, :3])
            behind = loaded(ids[:, 3:], past_key_values=first.past_key_values)
            np.testing.assert_allclose(behind.logits, loaded(ids).logits[:, 3:], rtol=1e-5, atol=1e-6)
            if model == "mistral":
                with pytest.raises(UserError, match="attention_mask"):
                    loaded(ids[:, :1], past_key_values=behind.past_key_values)


@pytest.mark.long
def test_windows_of_a_static_cache_keep_the_window(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    spec = spec_of(tmp_path / "c", "gemma3_text", sliding_window=6, layer_types=kinds, head_dim=8)
    fx2onnx.export_folder(spec, tmp_path / "m", cache="static", weights="random", verify=True)
    ids, mask = np.arange(20).reshape(2, 10) + 3, np.ones((2, 10), np.int64)
    mask[0, :2] = 0
    module = resolve(f"{spec}?task=causal-lm", weights="random").module
    given = {"attention_mask": torch.from_numpy(mask), "max_new_tokens": 9, "do_sample": False}
    wanted = module.generate(torch.from_numpy(ids), **given)  # type: ignore[operator]
    beams = module.generate(torch.from_numpy(ids[1:]), max_new_tokens=9, num_beams=3, num_return_sequences=3)  # type: ignore[operator]
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "m", engine=engine)
        assert {state.name: state.length for state in loaded.main.form.cache if state.name.endswith("key")} == {
            "0.key": "window",
            "1.key": "capacity",
        }
        assert loaded.generate(ids, attention_mask=mask, max_new_tokens=9).tolist() == wanted.tolist()
        of_beams = loaded.generate(ids[1:], max_new_tokens=9, num_beams=3, num_return_sequences=3)
        assert of_beams.tolist() == beams.tolist()
        states = {name: np.zeros((2, 2, 12, 8), np.float32) for name in ("1.key", "1.value")}
        whole = loaded(ids, past_length=np.array(0), past_key_values=states)
        first = loaded(ids[:, :7], past_length=np.array(0), past_key_values=states)
        behind = loaded(ids[:, 7:], past_length=np.array(7), past_key_values=first.past_key_values)
        np.testing.assert_allclose(behind.logits, whole.logits[:, 7:], rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "more", "cache"),
    [
        ("qwen3_next", HYBRID, "static"), ("qwen3_next", HYBRID, "paged"), ("falcon_h1", PARALLEL, "static"),
        ("falcon_h1", PARALLEL, "paged"), ("minimax", LINEAR_FIRST, "static"), ("nemotron_h", BY_TURNS, "paged"),
        ("jamba", {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}, "static"),
    ],
)  # fmt: skip
def test_recurrent_layers_beside_a_cache_of_fixed_size(
    tmp_path: Path, model: str, more: dict[str, Any], cache: str
) -> None:
    """Keys and values alone have a fixed size: tokens behind padding and those of beams are those of transformers."""
    spec = spec_of(tmp_path / "c", model, **more)
    done = fx2onnx.export_folder(spec, tmp_path / "m", cache=cache, weights="random", verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    ids, mask = np.arange(20).reshape(2, 10) + 3, np.ones((2, 10), np.int64)
    mask[0, :2] = 0
    module = resolve(f"{spec}?task=causal-lm", weights="random").module
    given = {"attention_mask": torch.from_numpy(mask), "max_new_tokens": 9, "do_sample": False}
    wanted = module.generate(torch.from_numpy(ids), **given)  # type: ignore[operator]
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "m", engine=engine)
        lengths = {state.name: state.length for state in loaded.main.form.cache}
        fixed = {name for name, length in lengths.items() if length in FIXED}
        assert fixed == {name for name in lengths if name.endswith((".key", ".value"))} != set(lengths)
        assert loaded.generate(ids, attention_mask=mask, max_new_tokens=9).tolist() == wanted.tolist()
    if model != "minimax":  # transformers cannot reorder its cache
        beams = module.generate(torch.from_numpy(ids[1:]), max_new_tokens=9, num_beams=3)  # type: ignore[operator]
        assert loaded.generate(ids[1:], max_new_tokens=9, num_beams=3).tolist() == beams.tolist()


def test_given_prompts_calibrate_and_their_loss_is_said(tmp_path: Path) -> None:
    ids = np.arange(12).reshape(2, 6) + 5
    np.savez(tmp_path / "prompts.npz", input_ids=ids)
    spec, given = spec_of(tmp_path / "c"), {"kv": "int8:channel", "weights": "random"}
    of_file = fx2onnx.export_folder(spec, tmp_path / "m", kv_calibration=tmp_path / "prompts.npz", **given)
    assert any(
        "2 given prompts of 6 tokens" in note and "the loss of the prompts is 4." in note for note in of_file.notes
    )
    assert fx2onnx.load(tmp_path / "m", "runner").manifest.options["kv"] == "int8:channel"
    for wrong, code in (
        ({"ids": ids}, "E401"),
        ({"input_ids": ids + 50}, "E401"),
        ({"input_ids": ids.astype(str)}, "E401"),
        ({"input_ids": ids, "attention_mask": ids * 0}, "E401"),
        (tmp_path / "none.npz", "E302"),
        (3, "E001"),
    ):
        with pytest.raises(UserError) as caught:
            fx2onnx.export_folder(spec, tmp_path / "w", kv_calibration=wrong, **given)
        assert caught.value.code == code
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"cache": "static"}, "E001", "--cache static"),
        ({"fused": True}, "E001", "--fused"),
        ({"target": "onnxruntime-genai"}, "E001", "--target onnxruntime-genai"),
        ({"task": "text-generation"}, "E001", "--task text-generation"),
        ({"kv": "int3"}, "E001", "int8"),
        ({"kv": None, "kv_calibration": {}}, "E001", "for a cache in 8 bits"),
        ({"kv": "fp8", "opset_version": 20}, "E202", "needs opset 21"),
        ({"cache": "paged"}, "E001", "--cache paged"),
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
    monkeypatch.setattr("fx2onnx.decoding.cache.calibration.LARGEST_ERROR", 0)
    with pytest.raises(UserError, match="logits change") as caught:
        fx2onnx.export_folder(spec_of(tmp_path), tmp_path / "m", kv="int8", weights="random", logits="last")
    assert caught.value.code == "E601"
