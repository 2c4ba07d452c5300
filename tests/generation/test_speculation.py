"""Tokens that a smaller model drafts: greedy the same as without it, drawn by the same chances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.generation.searches import HeadDrafter, accepted
from fx2onnx.generation.settings import Chooser, GenerateSettings
from fx2onnx.sources.seeding import seeded

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

PROMPT = np.array([[1, 5, 77, 12, 9]])
SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def folder(path: Path, seed: int, **more: Any) -> Path:
    options = {name: more.pop(name) for name in ("logits", "target", "fused", "task") if name in more}
    with seeded(seed):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1} | more)
        ).eval()
        for weight in model.parameters():
            weight.data *= 3 if weight.dim() > 1 else 1
    model.save_pretrained(path / "in")
    fx2onnx.export_folder(f"hf:{path / 'in'}", path / "out", **{"task": "text-generation-with-past"} | options)
    return path / "out"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and another of the same vocabulary."""
    place = tmp_path_factory.mktemp("drafts")
    return folder(place / "model", 1, num_hidden_layers=2), folder(place / "drafter", 2)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["onnxruntime", "runner"])
def test_greedy_tokens_are_the_same(engine: str, pair: tuple[Path, Path]) -> None:
    """A drafter that is never right and one that always is, up to the last position that there is."""
    model = fx2onnx.load(pair[0], engine=engine)
    wanted = model.generate(PROMPT, max_new_tokens=27)
    for assistant in pair[::-1]:
        for count in (1, 4, 50):
            found = model.generate(PROMPT, max_new_tokens=27, assistant=assistant, num_assistant_tokens=count)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.long
def test_fewer_calls_with_a_good_drafter(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, assistant = fx2onnx.load(pair[0]), fx2onnx.load(pair[0])
    calls, run = [], model.main.run
    monkeypatch.setattr(model.main, "run", lambda feeds: calls.append(1) or run(feeds))  # type: ignore[func-returns-value]
    model.generate(PROMPT, max_new_tokens=19, assistant=assistant, num_assistant_tokens=5)
    assert len(calls) == 4  # the prompt, and three times six tokens


@pytest.mark.long
def test_ends_rules_and_streams_hold(pair: tuple[Path, Path]) -> None:
    model = fx2onnx.load(pair[0])
    plain = model.generate(PROMPT, max_new_tokens=12, repetition_penalty=1.3, no_repeat_ngram_size=2)
    end = int(plain[0, 9])
    options = {"max_new_tokens": 12, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "eos_token_id": end}
    seen: list[int] = []
    found = model.generate(PROMPT, assistant=pair[1], on_token=lambda step: seen.append(int(step[0])), **options)
    np.testing.assert_array_equal(found, model.generate(PROMPT, **options))
    assert seen == found[0, PROMPT.shape[1] :].tolist()
    assert found[0, -1] == end


@pytest.mark.parametrize("wanted", [[0.7, 0.2, 0.1, 0.0], [0.1, 0.1, 0.4, 0.4]])
def test_drawn_by_the_same_chances(wanted: list[float]) -> None:
    drafted, count = np.array([0.1, 0.5, 0.4, 0.0], np.float32), 6_000
    choose = Chooser(GenerateSettings(do_sample=True, seed=0), is_torch=False)
    drafts = np.random.default_rng(1).choice(
        4, count, p=drafted.astype(np.float64) / float(drafted.sum(dtype=np.float64))
    )
    found = [int(accepted(np.array(wanted, np.float32), drafted, int(each), choose)[0]) for each in drafts]
    np.testing.assert_allclose(np.bincount(found, minlength=4) / count, wanted, atol=0.02)


@pytest.mark.long
def test_sampling(pair: tuple[Path, Path]) -> None:
    """One seed gives one sequence, and its tokens are those that may be drawn."""
    model = fx2onnx.load(pair[0])
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "seed": 3, "assistant": pair[1]}
    once, again = (model.generate(PROMPT, **options, temperature=2.0) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    single = model.generate(torch.from_numpy(PROMPT), **options, top_k=1)
    np.testing.assert_array_equal(single.numpy(), model.generate(PROMPT, max_new_tokens=8))


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"num_beams": 2}, "E001", "drafted tokens of several sequences"),
        ({"num_assistant_tokens": 0}, "E001", "num_assistant_tokens"),
        ({"assistant": None, "num_assistant_tokens": 3}, "E001", "without an assistant"),
        ({"assistant": "nowhere"}, "E302", "no exported model"),
    ],
)
def test_settings_that_contradict(settings: dict[str, Any], code: str, message: str, pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=message) as raised:
        fx2onnx.load(pair[0]).generate(PROMPT, **{"assistant": pair[1]} | settings)
    assert raised.value.code == code


@pytest.mark.long
def test_several_prompts(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="one prompt"):
        fx2onnx.load(pair[0]).generate(np.repeat(PROMPT, 2, 0), assistant=pair[1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "message"),
    [({"vocab_size": 80, "bos_token_id": 1}, "another vocabulary"), ({"task": "text-generation"}, "has no cache")],
)
def test_folders_that_cannot_draft(more: dict[str, Any], message: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = folder(tmp_path, 3, **more)
    with pytest.raises(UserError, match=message) as raised:
        fx2onnx.load(pair[0]).generate(PROMPT, assistant=other)
    assert raised.value.code == "E401"


@pytest.mark.long
@pytest.mark.parametrize("more", [{"logits": "last"}, {"target": "onnxruntime", "fused": True}])
def test_other_forms_of_the_model(more: dict[str, Any], pair: tuple[Path, Path], tmp_path: Path) -> None:
    model = fx2onnx.load(folder(tmp_path, 1, num_hidden_layers=2, **more))
    if "logits" in more:
        with pytest.raises(UserError, match="logits of the last token only"):
            model.generate(PROMPT, assistant=pair[1])
        return
    wanted = fx2onnx.load(pair[0]).generate(PROMPT, max_new_tokens=12)
    np.testing.assert_array_equal(model.generate(PROMPT, max_new_tokens=12, assistant=pair[1]), wanted)


def head_folder(path: Path, kind: str, **more: Any) -> tuple[Path, Any]:
    """An exported checkpoint with an MTP head behind its layers, and the model."""
    from safetensors.torch import load_file, save_file
    from transformers.modeling_layers import MtpModel

    routed = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
    }
    config = transformers.AutoConfig.for_model(
        kind,
        **SIZES,
        **routed,
        num_hidden_layers=2,
        num_key_value_heads=4,
        first_k_dense_replace=1,
        num_mtp_layers=1,
        **more,
    )
    with seeded(3):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        head = MtpModel(model, 1)
        head.layers.apply(model._init_weights)
        for weight in (*model.parameters(), *head.layers.parameters()):
            weight.data *= 1.5 if weight.dim() > 1 else 1
    model.save_pretrained(path / "in")
    file, renames = path / "in" / "model.safetensors", (("mtp_block.", ""), ("post_norm", "shared_head.norm"))
    state = load_file(file)
    for name, value in head.layers[0].state_dict().items():
        for old, new in renames:
            name = name.replace(old, new)
        state[f"model.layers.2.{name}"] = value.clone()
    save_file(state, file, metadata={"format": "pt"})
    done = fx2onnx.export_folder(f"hf:{path / 'in'}", path / "out", drafter="mtp", verify=True)
    assert all(verdict.ok for verdict in done.verdicts.values())
    return path / "out", (model, head)


LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "more"), [("glm4_moe", {"head_dim": 8}), ("deepseek_v3", LATENT)])
def test_a_head_of_the_model_drafts(
    kind: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first logits are those of transformers' head; tokens are the same with drafts that are never, seldom and often right."""
    place, (model, head) = head_folder(tmp_path, kind, **more)
    ids = torch.from_numpy(PROMPT)
    wanted = model.generate(ids, max_new_tokens=12, do_sample=False).numpy()
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(place, engine=engine)
        found = loaded.generate(PROMPT, max_new_tokens=12, use_mtp=True, num_assistant_tokens=2)
        np.testing.assert_array_equal(found, wanted)
    with torch.no_grad():
        behind = model(ids, output_hidden_states=True)
        shifted = torch.cat([ids[:, 1:], behind.logits[:, -1:].argmax(-1)], 1)
        cache = transformers.cache_utils.MtpCache(config=head.config)
        expected = head(shifted, behind.hidden_states[-1], None, torch.arange(1, 6)[None], cache)[1][0, 0]
    first: list[Any] = []
    asked, calls, run = HeadDrafter.logits, [], loaded.main.run

    def rigged(self: HeadDrafter, tokens: Any, count: int) -> Any:
        """The right token at two of three places."""
        scores = asked(self, tokens, count)
        first.append(scores[0].copy())
        length = tokens.shape[1]
        scores[0, wanted[0, length] if length % 3 and length < wanted.shape[1] else 7] = 99
        return scores

    monkeypatch.setattr(HeadDrafter, "logits", rigged)
    monkeypatch.setattr(loaded.main, "run", lambda feeds: calls.append(1) or run(feeds))  # type: ignore[func-returns-value]
    found = loaded.generate(PROMPT, max_new_tokens=12, use_mtp=True, num_assistant_tokens=3)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(first[0], expected.numpy(), rtol=1e-4, atol=1e-5)
    assert len(calls) < 8


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"drafter": "mtp"}, "E601", "num_mtp_layers"),
        ({"drafter": "eagle"}, "E001", "mtp"),
        ({"drafter": "mtp", "logits": "last"}, "E001", "--logits last"),
        ({"drafter": "mtp", "cache": "static"}, "E001", "--cache static"),
    ],
)
def test_models_without_a_head_are_refused(options: dict[str, Any], code: str, why: str, tmp_path: Path) -> None:
    spec = "hf:llama?hidden_size=32&num_attention_heads=4&num_hidden_layers=1&intermediate_size=32&vocab_size=60"
    with pytest.raises(UserError, match=why) as caught:
        fx2onnx.export_folder(spec, tmp_path / "out", **options)
    assert caught.value.code == code
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_folder_without_a_head_says_how_to_get_one(pair: tuple[Path, Path]) -> None:
    model = fx2onnx.load(pair[0], engine="runner")
    with pytest.raises(UserError, match="--drafter mtp"):
        model.generate(PROMPT, use_mtp=True)
    with pytest.raises(UserError, match="use_mtp with an assistant"):
        model.generate(PROMPT, use_mtp=True, assistant=pair[1])
