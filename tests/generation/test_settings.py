"""Settings of ``generate``: the tokens of transformers under the same draws, text in and out, and contradictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.generation import LoadedModel, load
from fx2onnx.generation.prompt import FolderTokenizer
from fx2onnx.generation.settings import settings_of
from fx2onnx.sources import resolve
from tests.cli.support import invoke

SOURCE = "hf:llama?hidden_size=32&num_hidden_layers=1&intermediate_size=64&num_attention_heads=2&vocab_size=60"
SOURCE += "&bos_token_id=1&eos_token_id=2&pad_token_id=0"
IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, with a tokenizer of letters and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = tmp_path_factory.mktemp("settings") / "llama"
    fx2onnx.export_folder(SOURCE, made)
    letters = "abcdefghijklmnopqrstuvwxyz :.?!'ABCDEFGHIJKLMNOPQRSTUVWX"
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *letters])}
    own = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    own.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}bot: "
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def eager() -> Any:
    model: Any = resolve(f"{SOURCE}&task=causal-lm").module
    model.config.use_cache = True
    return model


@pytest.fixture(params=["onnxruntime", "runner"])
def model(request: pytest.FixtureRequest, folder: Path) -> LoadedModel:
    return load(folder, request.param)


SETTINGS: dict[str, dict[str, Any]] = {
    "sample": {"do_sample": True},
    "temperature, top_k": {"do_sample": True, "temperature": 0.7, "top_k": 20},
    "top_p": {"do_sample": True, "top_p": 0.8, "top_k": 0},
    "min_p": {"do_sample": True, "min_p": 0.02, "temperature": 0.5},
    "three each": {"do_sample": True, "num_return_sequences": 3},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 9},
    "penalties and draws": {"do_sample": True, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "allowed": {"prefix_allowed_tokens_fn": lambda row, tokens: [3 + row, 4, 5, 20, 21]},
    "length": {"max_length": 9, "max_new_tokens": None},
    "beams": {"num_beams": 3},
    "beams, two each": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.3},
    "beams, early": {"num_beams": 3, "early_stopping": True},
    "beams, never early": {"num_beams": 2, "early_stopping": "never", "length_penalty": 2.0},
    "beams, allowed": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda row, tokens: [3 + row, 4, 5, 2, 20]},
    "beams, penalties": {"num_beams": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "beams, drawn": {"num_beams": 3, "do_sample": True, "num_return_sequences": 2, "top_k": 9, "top_p": 0.7},
    "beams, drawn from few": {"num_beams": 2, "do_sample": True, "top_k": 1, "min_p": 0.3, "epsilon_cutoff": 0.5},
    "beams, scored anew": {"num_beams": 2, "renormalize_logits": True, "suppress_tokens": [7, 8, 9, 10, 11]},
    "typical_p": {"do_sample": True, "typical_p": 0.4, "top_k": 0},
    "epsilon_cutoff": {"do_sample": True, "epsilon_cutoff": 0.0165, "top_k": 0},
    "eta_cutoff": {"do_sample": True, "eta_cutoff": 0.9, "top_k": 0},
    "top_h": {"do_sample": True, "top_h": 0.5, "top_k": 0},
    "bias": {"sequence_bias": {(5,): 0.2, (9, 10): 3.0}},
    "decay": {"exponential_decay_length_penalty": (2, 1.4)},
    "forbidden": {"bad_words_ids": [[20], [21, 22]], "suppress_tokens": [30], "min_length": 9},
}


@pytest.mark.long_cases(but=("onnxruntime-beams", "runner-top_p"))
@pytest.mark.parametrize("case", SETTINGS)
def test_tokens_are_those_of_transformers(model: LoadedModel, eager: Any, case: str) -> None:
    settings = {"max_new_tokens": 10, **SETTINGS[case]}
    for seed in (0, 1):
        torch.manual_seed(seed)
        given = {"do_sample": False} | {name: value for name, value in settings.items() if value is not None}
        wanted = eager.generate(IDS, attention_mask=torch.ones_like(IDS), **given)
        torch.manual_seed(seed)
        assert torch.equal(model.generate(IDS, **settings), wanted)
        if settings.get("do_sample"):
            assert torch.equal(model.generate(IDS, seed=seed, **settings), wanted)


PADDED = torch.tensor([[0, 0, 7, 8], [9, 10, 11, 12]])
RULES: list[dict[str, Any]] = [
    {"bad_words_ids": [[5], [8, 3], [12, 50], [2], [3] * 9]},
    {"bad_words_ids": [[4]], "min_length": 7},
    {"min_length": 7, "min_new_tokens": 1},
    {"forced_bos_token_id": 3, "begin_suppress_tokens": [7, 8]},
    {"forced_bos_token_id": 3, "forced_eos_token_id": 2, "suppress_tokens": [9]},
    {"begin_suppress_tokens": [7, 8]},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 1.7, "no_repeat_ngram_size": 1},
    {"sequence_bias": [[[5], 2.0], [[7], -1.5], [[8, 5], 1.0], [[11, 12, 9], -3.0], [[3] * 9, 1.0]]},
    {"encoder_repetition_penalty": 1.8, "encoder_no_repeat_ngram_size": 2},
    {"exponential_decay_length_penalty": [1, 1.3], "remove_invalid_values": True, "bad_words_ids": [[5]]},
    {"forced_bos_token_id": 3, "suppress_tokens": [4], "remove_invalid_values": True},
]


@pytest.mark.long_cases(but=("runner-1-rules1", "runner-5-rules0", "runner-5-rules3", "runner-5-rules6"))
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("engine", ["onnxruntime", "runner"])
def test_rules_of_the_folder_are_followed(
    engine: str, new: int, rules: dict[str, Any], folder: Path, eager: Any, tmp_path: Path
) -> None:
    """The scores of transformers at every step, behind padding, and behind a single token."""
    shutil.copytree(folder, tmp_path / "ruled")
    stated = {"eos_token_id": 2, "pad_token_id": 0, **rules}
    (tmp_path / "ruled" / "generation_config.json").write_text(json.dumps(stated))
    with pytest.warns(fx2onnx.ExportWarning, match=r"generation_config\.json"):
        model = load(tmp_path / "ruled", engine)
    for ids in (PADDED, IDS[:, :1]):
        given, kept = {"attention_mask": (ids != 0).long(), "max_new_tokens": new}, list[Any]()
        wanted = eager.generate(
            ids, do_sample=False, output_scores=True, return_dict_in_generate=True, **given, **stated
        )
        found = model.generate(ids, logits_processor=[lambda _, scores: kept.append(scores) or scores], **given)  # type: ignore[func-returns-value]  # noqa: B023
        assert torch.equal(found, wanted.sequences)
        torch.testing.assert_close(torch.stack(kept), torch.stack(wanted.scores), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "usual"),
    [("watermarking_config", {"bias": 2.0}, None), ("guidance_scale", 1.5, 1.0), ("stop_strings", ["a"], None)],
)
def test_rules_of_the_folder_that_are_not_followed_warn(
    key: str, value: Any, usual: Any, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "ruled")
    stated = json.loads((folder / "generation_config.json").read_text())
    for given, count in ((value, 1), (usual, 0)):
        (tmp_path / "ruled" / "generation_config.json").write_text(json.dumps({**stated, key: given}))
        with pytest.warns(fx2onnx.ExportWarning) as seen:  # an edited file warns, too
            load(tmp_path / "ruled", "runner")
        assert sum(f"generate does not follow {key}" in str(each.message) for each in seen) == count


@pytest.mark.long
def test_numpys_draws_follow_the_seed_and_the_probabilities(model: LoadedModel) -> None:
    ids = np.repeat(IDS.numpy()[:1], 64, axis=0)
    first, again, other = (model.generate(ids, do_sample=True, seed=seed, max_new_tokens=2) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    cold = model.generate(ids, do_sample=True, temperature=1e-3, seed=0, max_new_tokens=2)
    assert np.array_equal(cold, model.generate(ids, max_new_tokens=2))


@pytest.mark.long
def test_text_and_chats_are_answered_in_text(model: LoadedModel) -> None:
    ids = np.array([[4 + "abcdefghijklmnopqrstuvwxyz :.?!'".index(letter) for letter in "hello you"]])
    tokens = model.generate(ids, max_new_tokens=6)[0, ids.shape[1] :]
    answer = model.generate("hello you", max_new_tokens=6)
    assert isinstance(answer, str)
    assert len(answer) >= (tokens > 3).sum()
    assert model.generate(["hello you"], max_new_tokens=6) == [answer]
    both = model.generate(["hello you", "you"], max_new_tokens=6)
    assert both[0] == answer
    chat = [{"role": "user", "content": "hi"}]
    assert model.generate(chat, max_new_tokens=6) == model.generate("user: hi bot: ", max_new_tokens=6)
    assert len(model.generate("hello", max_new_tokens=4, num_beams=2, num_return_sequences=2)) == 2


@pytest.mark.long
def test_a_text_ends_at_a_stop_string(model: LoadedModel, eager: Any, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    whole = model.generate(IDS, max_new_tokens=12)
    stop = tokenizer.decode(whole[0, 7:9])
    wanted = eager.generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        max_new_tokens=12,
        do_sample=False,
        stop_strings=[stop],
        tokenizer=tokenizer,
    )
    assert torch.equal(model.generate(IDS, max_new_tokens=12, stop_strings=[stop]), wanted)
    assert torch.equal(model.generate(IDS, max_new_tokens=12, stop_strings=stop), wanted)


class Streamer:
    """As transformers' streamers: gets the prompt and each token."""

    def __init__(self) -> None:
        self.found: list[list[int]] = []
        self.is_over = False

    def put(self, value: Any) -> None:
        self.found.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.is_over = True


@pytest.mark.long
def test_functions_of_the_user_are_called(model: LoadedModel) -> None:
    ids, streamer = IDS.numpy()[:1], Streamer()
    whole = model.generate(ids, max_new_tokens=6, streamer=streamer)
    assert [token for part in streamer.found for token in part] == whole[0].tolist()
    assert streamer.is_over
    short = model.generate(ids, max_new_tokens=6, stopping_criteria=[lambda tokens, _: tokens.shape[1] >= 6])
    assert short.tolist() == whole[:, :6].tolist()

    def only_seven(_: Any, scores: Any) -> Any:
        return np.where(np.arange(scores.shape[1]) == 7, scores, -np.inf)

    assert (model.generate(ids, max_new_tokens=3, logits_processor=[only_seven])[:, 4:] == 7).all()


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.7}, "temperature without sampling"),
    ({"top_k": 5, "top_p": 0.5}, "top_k, top_p without sampling"),
    ({"seed": 1}, "a seed without sampling"),
    ({"typical_p": 0.5, "top_h": 0.5}, "top_h, typical_p without sampling"),
    ({"sequence_bias": [[5, 2.0]]}, "sequence_bias=[[5, 2.0]]"),
    ({"sequence_bias": {(): 2.0}}, "sequence_bias="),
    ({"exponential_decay_length_penalty": 3}, "exponential_decay_length_penalty=3"),
    ({"do_sample": True, "eta_cutoff": 1}, "eta_cutoff=1"),
    ({"bad_words_ids": [5]}, "bad_words_ids=[5]"),
    ({"max_time": 0}, "max_time=0"),
    ({"num_return_sequences": 2}, "num_return_sequences=2 of the likeliest"),
    ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 with num_beams=2"),
    ({"length_penalty": 2.0}, "without beams"),
    ({"do_sample": True, "temperature": 0}, "temperature=0"),
    ({"do_sample": True, "temperature": "warm"}, "temperature='warm'"),
    ({"do_sample": True, "top_p": 1.5}, "top_p=1.5"),
    ({"do_sample": True, "top_k": -1}, "top_k=-1"),
    ({"do_sample": True, "min_p": -0.1}, "min_p"),
    ({"num_beams": 0}, "num_beams=0"),
    ({"num_beams": 2, "streamer": Streamer()}, "a streamer for several"),
    ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping"),
    ({"repetition_penalty": 0}, "repetition_penalty=0"),
    ({"stopping_criteria": len}, "stopping_criteria="),
    ({"logits_processor": [3]}, "logits_processor="),
    ({"prefix_allowed_tokens_fn": 3}, "prefix_allowed_tokens_fn=3"),
    ({"streamer": 3}, "streamer=3"),
    ({"do_sample": True, "seed": -1}, "seed=-1"),
    ({"do_sample": True, "seed": "a"}, "seed='a'"),
    ({"do_sample": True, "seed": 1.5}, "seed=1.5"),
    ({"do_sample": "no"}, "do_sample='no'"),
    ({"use_mtp": "yes"}, "use_mtp='yes'"),
    ({"assistant": 3}, "assistant=3"),
    ({"stop_strings": [1]}, "stop_strings=[1]"),
    ({"stop_strings": 3}, "stop_strings=3"),
    ({"repetition_penalty": float("inf")}, "repetition_penalty=inf"),
    ({"num_beams": 2, "length_penalty": float("inf")}, "length_penalty=inf"),
]


@pytest.mark.parametrize(("settings", "text"), CONTRADICTIONS, ids=range(len(CONTRADICTIONS)))
def test_settings_that_contradict_are_one_error(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match="E001") as caught:
        settings_of((), dict(settings))
    assert text in caught.value.what
    assert caught.value.next


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"eos_token_id": "a"}, "E001", "eos_token_id='a'"),
        ({"eos_token_id": [1.5]}, "E001", r"eos_token_id=\[1.5\]"),
        ({"pad_token_id": 1.5}, "E001", "pad_token_id=1.5"),
        ({"logits_processor": [lambda *_: None]}, "E401", "logits_processor returned object"),
        ({"logits_processor": [lambda _, scores: scores[:, :5]]}, "E401", "logits_processor returned float32"),
        ({"stopping_criteria": [lambda *_: "x"]}, "E401", "stopping_criteria returned 'x'"),
        ({"stopping_criteria": [lambda *_: np.array([True])]}, "E401", "stopping_criteria returned"),
        ({"prefix_allowed_tokens_fn": lambda *_: None}, "E401", "it gave None"),
        ({"prefix_allowed_tokens_fn": lambda *_: [1.5]}, "E401", r"it gave \[1.5\]"),
        ({"prefix_allowed_tokens_fn": lambda *_: "ab"}, "E401", "it gave 'ab'"),
        ({"forced_eos_token_id": 60}, "E401", "force the token 60"),
        ({"forced_eos_token_id": 3, "suppress_tokens": [4, 3]}, "E401", r"force the token 3[^$]*suppress_tokens"),
    ],
)
def test_what_is_no_token_and_no_score_is_one_error(
    settings: dict[str, Any], code: str, text: str, folder: Path
) -> None:
    with pytest.raises(UserError, match=text) as caught:
        load(folder, "runner").generate(IDS.numpy(), max_new_tokens=2, **settings)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "meant"), [("stop", "stop_strings"), ("max_tokens", "max_new_tokens"), ("temprature", "temperature")]
)
def test_a_name_that_is_nearly_a_setting_is_told(name: str, meant: str) -> None:
    with pytest.raises(UserError, match="E401") as caught:
        settings_of(("input_ids",), {name: 3})
    assert caught.value.next == (f"did you mean {meant}?",)
    settings_of((name,), {name: 3})  # an input of the model


def test_an_end_for_each_row(folder: Path) -> None:
    """A criterion that returns a bool for each row ends that row alone; tokens may be of NumPy and PyTorch."""
    model = load(folder, "runner")
    given: dict[str, Any] = {"eos_token_id": torch.tensor([2, 3]), "pad_token_id": np.int64(0), "max_new_tokens": 3}
    found = model.generate(IDS.numpy(), stopping_criteria=[lambda *_: np.array([True, False])], **given)
    assert found[0, 5:].tolist() == [0, 0]
    assert found[1, 5:].tolist() != [0, 0]


@pytest.mark.parametrize(
    ("given", "step"),
    [({"role": "user", "content": "a"}, "a list of messages"), ({"input_ids": IDS, "attention_mask": IDS}, "inputs")],
)
def test_a_dict_is_no_prompt(given: dict[str, Any], step: str, folder: Path) -> None:
    with pytest.raises(UserError, match=r"E401.*is a dict") as caught:
        load(folder, "runner").generate(given)
    assert step in caught.value.next[0]


def test_a_call_ends_when_its_time_is_over(folder: Path) -> None:
    model = load(folder, "runner")
    assert model.generate(IDS, max_new_tokens=9, max_time=1e-9).shape == (2, 5)
    assert model.generate(IDS, max_new_tokens=4, max_time=1e9).shape == (2, 8)


@pytest.mark.long
def test_lengths_and_texts_that_cannot_be_are_told(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    for given, text in (
        ({"max_length": 9, "max_new_tokens": 3}, "both given"),
        ({"max_length": 4}, "no room after 4 tokens"),
        ({"stop_strings": [""]}, "stop_strings=['']"),
        ({"streamer": Streamer()}, "one prompt"),
        ({"on_token": 3}, "on_token=3"),
    ):
        with pytest.raises(UserError, match="E001") as caught:
            model.generate(IDS, **given)
        assert text in caught.value.what
    with pytest.raises(UserError, match=r"E401.*prefix_allowed_tokens_fn[^$]*from 0 to 59"):
        model.generate(IDS, prefix_allowed_tokens_fn=lambda row, tokens: [])
    with pytest.raises(UserError, match=r"E401.*attention_mask[^$]*give attention_mask as \[2, 4\]"):
        model.generate(IDS, attention_mask=IDS[:, 1:])
    with pytest.raises(UserError, match=r"E401[^$]*inspect .*model.onnx prints the inputs"):
        model(input_ids=IDS, past_key_values={"x": 1})
    for ids, text in (
        (IDS.float(), "E401.*float32"),
        ([[3, 4], [5]], "E401.*no array[^$]*pad the rows"),
        (IDS - 9, "E401.*token -4"),
        (IDS + 60, "E40[13]"),
    ):
        with pytest.raises(UserError, match=text):
            model.generate(ids)
    with pytest.raises(UserError, match=r"E401.*no token"):
        model.generate("")


@pytest.mark.long
def test_a_folder_without_a_tokenizer_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    with pytest.raises(UserError, match=r"E302.*no tokenizer"):
        load(tmp_path / "bare").generate("hello")


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "gemma3_text", "t5", "bert"])
def test_a_tokenizer_that_transformers_makes_of_nothing_is_none(kind: str, tmp_path: Path) -> None:
    """It has special tokens only: each text was one unknown token, or none."""
    from transformers import AutoConfig

    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"E302.*no tokenizer") as caught:
        FolderTokenizer(tmp_path, "give token ids")
    assert "special tokens only" in caught.value.why


@pytest.mark.long
def test_the_command_takes_and_gives_text(folder: Path) -> None:
    def run(*more: str) -> Any:
        return invoke("generate", str(folder), *more)

    answer = load(folder).generate("user: hi bot: ", max_new_tokens=5)
    assert run("--prompt", "hi", "--chat", "--max-new-tokens", "5").stdout.strip() == answer.strip()
    found = json.loads(run("--prompt", "hi", "--json", "--do-sample", "--seed", "1", "--top-k", "5").stdout)
    assert len(found["texts"]) == 1
    assert (
        len(
            json.loads(run("--prompt", "a", "--json", "--num-beams", "2", "--num-return-sequences", "2").stdout)[
                "texts"
            ]
        )
        == 2
    )
    for wrong in (["--prompt", "a", "--prompt-ids", "1"], ["--chat", "--prompt-ids", "1"], ["--prompt", "a", "--top-k", "5"],
                  ["--prompt", "a", "--verify", "--num-beams", "2"]):  # fmt: skip
        done = run(*wrong)
        assert done.exit_code == 2, wrong
        assert "E001" in done.stderr
