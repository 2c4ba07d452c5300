"""Tokens that a smaller model drafts: greedy the same as without it, drawn by the same chances."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.generation.scores import Chooser
from fx2onnx.generation.searches import CachedTokens, HeadDrafter, accepted
from fx2onnx.generation.settings import GenerateSettings
from fx2onnx.sources.seeding import seeded

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

PROMPT = np.array([[1, 5, 77, 12, 9]])
SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def folder(path: Path, seed: int, **more: Any) -> Path:
    options = {name: more.pop(name) for name in ("logits", "target", "fused", "task", "cache") if name in more}
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
@pytest.mark.parametrize(
    "more", [{"logits": "last"}, {"target": "onnxruntime", "fused": True}, {"cache": "static"}, {"cache": "paged"}]
)
def test_other_forms_of_the_model(more: dict[str, Any], pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Drafts that are always right, and never; up to the last place of a cache of fixed size."""
    place = folder(tmp_path, 1, num_hidden_layers=2, **more)
    model = fx2onnx.load(place)
    if "logits" in more:
        with pytest.raises(UserError, match="logits of the last token only"):
            model.generate(PROMPT, assistant=pair[1])
        return
    wanted = fx2onnx.load(pair[0]).generate(PROMPT, max_new_tokens=27)
    for engine, assistant in (("onnxruntime", pair[1]), ("onnxruntime", place), ("runner", place)):
        loaded = fx2onnx.load(place if engine == "onnxruntime" else pair[0], engine=engine)
        found = loaded.generate(PROMPT, max_new_tokens=27, assistant=assistant, num_assistant_tokens=4)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "window", "cache"),
    [
        *itertools.product(["onnxruntime", "runner"], [2, 5, 12], ["dynamic"]),
        *itertools.product(["onnxruntime", "runner"], [5], ["static", "paged"]),
    ],
)
def test_sliding_windows(
    engine: str, window: int, cache: str, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows shorter than the prompt, than what is generated and than a round of drafts; the drafter has one or none."""
    kinds, sizes = ["sliding_attention", "full_attention"], SIZES | {"num_key_value_heads": 2, "head_dim": 8}
    with seeded(1):
        config = transformers.Gemma3TextConfig(**sizes, num_hidden_layers=2, sliding_window=window, layer_types=kinds)
        model = transformers.Gemma3ForCausalLM(config).eval()
        for weight in model.parameters():
            weight.data *= 3 if weight.dim() > 1 else 1
    model.save_pretrained(tmp_path / "in")
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", verify=False, cache=cache)
    loaded, itself = (fx2onnx.load(tmp_path / "out", engine=engine) for _ in range(2))
    wanted = loaded.generate(PROMPT, max_new_tokens=20)
    asked = CachedTokens.logits

    def rigged(self: CachedTokens, tokens: Any, count: int) -> Any:
        """The drafter's logits, of which one of three is another than the model's."""
        scores = asked(self, tokens, count)
        if self.model is itself and tokens.shape[1] % 3 == 0:
            scores[0, 7] = 99
        return scores

    monkeypatch.setattr(CachedTokens, "logits", rigged)
    for assistant, count in ((itself, 4), (itself, 20), (pair[1], 3)):
        found = loaded.generate(PROMPT, max_new_tokens=20, assistant=assistant, num_assistant_tokens=count)
        np.testing.assert_array_equal(found, wanted)


def head_folder(path: Path, kind: str, **more: Any) -> tuple[Path, Any]:
    """An exported checkpoint with an MTP head behind its layers, and the model."""
    options = {name: more.pop(name) for name in ("cache", "target", "fused") if name in more}
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
    done = fx2onnx.export_folder(f"hf:{path / 'in'}", path / "out", drafter="mtp", verify=True, **options)
    assert all(verdict.ok for verdict in done.verdicts.values())
    return path / "out", (model, head)


@contextlib.contextmanager
def often_right(loaded: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Any], list[Any]]]:
    """The head is given the right token at two of three places. Yields its own logits so far, and the calls of the model."""
    first, calls, asked, run = list[Any](), list[Any](), HeadDrafter.logits, loaded.main.run

    def rigged(self: HeadDrafter, tokens: Any, count: int) -> Any:
        scores = asked(self, tokens, count)
        first.append(scores[0].copy())
        length = tokens.shape[1]
        scores[0, wanted[0, length] if length % 3 and length < wanted.shape[1] else 7] = 99
        return scores

    with monkeypatch.context() as patched:
        patched.setattr(HeadDrafter, "logits", rigged)
        patched.setattr(loaded.main, "run", lambda feeds: calls.append(1) or run(feeds))  # type: ignore[func-returns-value]
        yield first, calls


WINDOWS = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
FUSED = {"target": "onnxruntime", "fused": True}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("glm4_moe", {"head_dim": 8}),
        ("deepseek_v3", LATENT),
        ("mellum", WINDOWS),
        ("mellum", {**WINDOWS, "cache": "static"}),
        ("glm4_moe", {"head_dim": 8, "cache": "paged"}),
        ("glm4_moe", {"head_dim": 8, **FUSED}),
    ],
)
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
    with often_right(loaded, wanted, monkeypatch) as (first, calls):
        found = loaded.generate(PROMPT, max_new_tokens=12, use_mtp=True, num_assistant_tokens=3)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(first[0], expected.numpy(), rtol=1e-4, atol=1e-5)
    assert len(calls) < 8


def eagle_drafter(
    path: Path,
    base: Any,
    *,
    lacks: str = "",
    names: str = "midlayer.",
    layers: int = 1,
    nested: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """The weights of a random drafter of EAGLE-3 with 40 of the base's 99 tokens, saved in ``path``. It lacks weights of that beginning."""
    from safetensors.torch import save_file

    width = 32
    shapes = {"fc": (width, 3 * 32), "norm": (width,), "lm_head": (40, width), "embed_tokens": (99, width)}
    rows, firsts = {"q": 32, "k": 16, "v": 16}, [names, *(f"layers.{index}." for index in range(1, layers))]
    shapes[f"{names}hidden_norm"] = (width,)
    for first in firsts:
        shapes |= {first + name: (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        wide = 64 if first == names else 32
        shapes |= {
            f"{first}self_attn.{name}_proj": (rows.get(name, width), wide if name != "o" else 32) for name in "qkvo"
        }
        shapes |= {f"{first}mlp.{name}_proj": (48, width) for name in ("gate", "up")}
        shapes |= {first + "mlp.down_proj": (width, 48)}
        if more.get("model_type") == "qwen3":
            shapes |= {f"{first}self_attn.{name}_norm": (8,) for name in "qk"}
    shapes |= {"input_norm": (96,)} if more.get("norm_before_fc") else {}
    shapes |= {f"fc_norm.{index}": (width,) for index in range(3)} if more.get("fc_norm") else {}
    with seeded(4):
        state = {f"{name}.weight": torch.randn(size) * 0.3 + (len(size) == 1) for name, size in sorted(shapes.items())}
        ids = torch.randperm(99)[:40].sort().values
    state |= {"d2t": ids - torch.arange(40), "t2d": torch.zeros(99, dtype=torch.bool).index_fill(0, ids, True)}
    for name in [name for name in state if lacks and name.startswith(tuple(lacks.split()))]:
        del state[name]
    sizes = {"hidden_size": width, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"model_type": "llama", "rms_norm_eps": 1e-5, "head_dim": 8}
    path.mkdir()
    save_file(state, path / "model.safetensors")
    stated = {"transformer_layer_config": sizes} if nested else sizes
    (path / "config.json").write_text(json.dumps({**stated, **more}))
    own = {"embed_tokens.weight": base.get_input_embeddings().weight, "lm_head.weight": base.lm_head.weight}
    return own | {name.replace(names, "layers.0."): value for name, value in state.items()}


def eagle_logits(
    state: dict[str, Any], tokens: torch.Tensor, hidden: torch.Tensor, handed: torch.Tensor, said: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The drafter's logits [vocabulary] behind the last of ``tokens``, step by step as the paper's code has them, and the hidden
    state [1, width] that it hands on. Of the last tokens, those of drafts, the states ``handed`` on stand for the base's.
    """

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * state[f"{name}.weight"]

    def product(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ state[f"{name}.weight"].T

    def heads(name: str, x: torch.Tensor, turned: bool = True) -> torch.Tensor:
        x = product(f"{name}_proj", x).view(length, -1, 8).transpose(0, 1)
        x = norm(f"{name}_norm", x) if f"{name}_norm.weight" in state else x
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
        sine, cosine = angle.sin(), angle.cos()
        low, high = x[..., :4], x[..., 4:]
        x = torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1) if turned else x
        return x.repeat_interleave(4 // len(x), 0)

    def layer(name: str, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        query, key, value = (heads(f"{name}self_attn.{each}", given, each != "v") for each in "qkv")
        scores = query @ key.transpose(1, 2) / 8**0.5 + torch.full((length, length), -torch.inf).triu(1)
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(length, -1)
        x = x + product(f"{name}self_attn.o_proj", mixed)
        y = norm(f"{name}post_attention_layernorm", x)
        gated = torch.nn.functional.silu(product(f"{name}mlp.gate_proj", y)) * product(f"{name}mlp.up_proj", y)
        return x + product(f"{name}mlp.down_proj", gated)

    length = len(tokens)
    if said.get("norm_before_fc"):
        hidden = norm("input_norm", hidden)
    if said.get("fc_norm"):
        hidden = torch.cat([norm(f"fc_norm.{index}", part) for index, part in enumerate(hidden.chunk(3, -1))], -1)
    before = torch.cat([product("fc", hidden), handed])
    normed = norm("layers.0.hidden_norm", before)
    both = torch.cat([norm("layers.0.input_layernorm", state["embed_tokens.weight"][tokens]), normed], -1)
    x = layer("layers.0.", normed if said.get("norm_before_residual") else before, both)
    for index in range(1, said.get("layers", 1)):
        x = layer(f"layers.{index}.", x, norm(f"layers.{index}.input_layernorm", x))
    logits, handed = product("lm_head", norm("norm", x)[-1]), (norm("norm", x) if said.get("norm_output") else x)[-1:]
    if "d2t" in state:
        logits = torch.full((99,), -1e4).index_copy(0, torch.arange(40) + state["d2t"], logits)
    return logits, handed


EAGLES: dict[str, tuple[str, dict[str, Any]]] = {
    "own tables": ("llama", {}),
    "static": ("qwen3", {"export": {"cache": "static"}}),
    "paged": ("llama", {"layers": 3, "export": {"cache": "paged"}}),
    "fused": ("qwen3", {"export": FUSED}),
    "fused, static": ("llama", {"export": FUSED | {"cache": "static"}}),
    "own layers": (
        "qwen3",
        {"lacks": "embed_tokens", "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 0]}},
    ),
    "own norm": ("granite", {"lacks": "lm_head d2t t2d", "names": "layers.0.", "norm_before_residual": True}),
    "three layers": ("llama", {"layers": 3, "norm_before_fc": True, "norm_output": True}),
    "layers of Qwen3": (
        "qwen3",
        {"layers": 2, "names": "layers.0.", "nested": True, "model_type": "qwen3", "fc_norm": True},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", EAGLES)
def test_a_drafter_of_eagle_3(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first two logits are those of its formula; tokens are those without it, in fewer calls where it is often right."""
    family, more = EAGLES[kind]
    options = more.get("export", {})
    more = {name: value for name, value in more.items() if name != "export"}
    sizes = SIZES | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": None}
    with seeded(1):
        base = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes)).eval()
        for weight in base.parameters():
            weight.data *= 3 if weight.dim() > 1 else 1
    base.save_pretrained(tmp_path / "in")
    state = eagle_drafter(tmp_path / "eagle", base, **more)
    fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", drafter=str(tmp_path / "eagle"), **options)
    ids = torch.from_numpy(PROMPT)
    wanted = base.generate(ids, max_new_tokens=12, do_sample=False).numpy()
    layers = more.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", [2, 2, 1])
    with torch.no_grad():
        behind = base(ids, output_hidden_states=True)
        hidden = torch.cat([behind.hidden_states[layer][0] for layer in layers], -1)
        tokens = torch.cat([ids[0, 1:], behind.logits[0, -1:].argmax(-1)])
        expected, handed = eagle_logits(state, tokens, hidden, hidden[:0, :32], more)
        later, _ = eagle_logits(state, torch.cat([tokens, torch.tensor([7])]), hidden, handed, more)
    for engine in ("onnxruntime", "runner"):
        loaded = fx2onnx.load(tmp_path / "out", engine=engine)
        found = loaded.generate(PROMPT, max_new_tokens=12, use_mtp=True, num_assistant_tokens=4)
        np.testing.assert_array_equal(found, wanted)
        with often_right(loaded, wanted, monkeypatch) as (first, calls):
            found = loaded.generate(PROMPT, max_new_tokens=12, use_mtp=True, num_assistant_tokens=3)
        np.testing.assert_array_equal(found, wanted)
        for logits, right in zip(first, (expected, later), strict=False):  # the first draft is 7
            np.testing.assert_allclose(logits, right.numpy(), rtol=1e-4, atol=1e-4)
        assert len(calls) < 8


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"lacks": "fc"}, "no weights midlayer"),
        ({"lacks": "midlayer.mlp.up"}, "layers.0.mlp.up_proj.weight is missing"),
        ({"layers": 3, "lacks": "layers.1.mlp.up"}, "layers.1.mlp.up_proj.weight is missing"),
        ({"lacks": "lm_head"}, "lm_head|d2t"),
        ({"lacks": "d2t"}, "lm_head.weight"),
        ({"norm_before_fc": True, "lacks": "input_norm"}, "input_norm.weight is missing"),
        ({"parallel_drafting": True}, "parallel_drafting"),
        ({"layer_types": ["sliding_attention"]}, "sliding windows"),
        ({"num_hidden_layers": 2}, "of 2"),
        ({"vocab_size": 80}, "another vocabulary"),
        ({"hidden_size": 64}, "fc.weight"),
    ],
)
def test_a_drafter_that_does_not_fit(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    base = {name: value for name, value in more.items() if name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 4} | base))
    model.save_pretrained(tmp_path / "in")
    eagle_drafter(tmp_path / "eagle", model, **{name: more[name] for name in more if name not in base})
    with pytest.raises(UserError, match=why) as caught:
        fx2onnx.export_folder(f"hf:{tmp_path / 'in'}", tmp_path / "out", drafter=str(tmp_path / "eagle"))
    assert caught.value.code == "E601"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"drafter": "mtp"}, "E601", "num_mtp_layers"),
        ({"drafter": "eagle"}, "E001", "mtp"),
        ({"drafter": 3}, "E001", "mtp"),
        ({"drafter": "mtp", "logits": "last"}, "E001", "--logits last"),
        ({"drafter": "mtp", "target": "onnxruntime-genai"}, "E001", "--target onnxruntime-genai"),
        ({"drafter": "mtp", "cache": "static"}, "E601", "num_mtp_layers"),
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
