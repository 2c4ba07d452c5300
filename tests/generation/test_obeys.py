"""The manifest is obeyed: another one makes another run of the same graphs, and one that they do not fit is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.generation import LoadedModel, load

ENGINES = ("runner", "onnxruntime")
SIZES = "hidden_size=32&num_hidden_layers=1&vocab_size=50&bos_token_id=1&eos_token_id=2&pad_token_id=0"
SOURCES = {
    "mistral": f"hf:mistral?{SIZES}&intermediate_size=64&num_attention_heads=2&num_key_value_heads=2&sliding_window=5",
    "mamba": f"hf:mamba?{SIZES}&state_size=4",
}
PROMPT = np.array([[5, 6, 7, 8, 9, 10, 11]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp("folders") / name for name in SOURCES}
    for name, folder in made.items():
        fx2onnx.export_folder(SOURCES[name], folder)
    return made


Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(params=ENGINES)
def edited(
    request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path
) -> Callable[[str, Edit], LoadedModel]:
    """The folder of that name, its manifest changed."""

    def load_edited(name: str, edit: Edit) -> LoadedModel:
        folder = tmp_path / name
        shutil.copytree(folders[name], folder, dirs_exist_ok=True)
        stated = json.loads((folder / MANIFEST).read_text())
        edit(stated)
        (folder / MANIFEST).write_text(json.dumps(stated))
        return load(folder, request.param)

    return load_edited


def nothing(_: dict[str, Any]) -> None:
    pass


Loader = Callable[[str, Edit], LoadedModel]


@pytest.mark.long
def test_the_window_is_that_of_the_manifest(edited: Loader) -> None:
    def narrower(stated: dict[str, Any]) -> None:
        for state in stated["graphs"][0]["cache"]:
            assert (state["length"], state["window"], state["axis"]) == ("window", 4, 2)
            state["window"] = 2

    logits = []
    for edit, kept in ((nothing, 4), (narrower, 2)):
        first = edited("mistral", edit)(input_ids=PROMPT)
        assert [value.shape()[2] for value in first.past_key_values.values()] == [kept, kept]
        model = edited("mistral", edit)
        following = model(
            input_ids=PROMPT[:, :1],
            attention_mask=np.ones((1, 8), np.int64),
            position_ids=np.array([[7]]),
            past_key_values=first.past_key_values,
        )
        logits.append(following.logits)
    assert not np.allclose(*logits, rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_the_cache_begins_as_the_manifest_says(edited: Loader) -> None:
    def another(stated: dict[str, Any]) -> None:
        for state in stated["graphs"][0]["cache"]:
            assert state["length"] == "constant"
            state["initial"] = 3.5

    plain, other = (edited("mamba", edit)(input_ids=PROMPT[:, :1]).logits for edit in (nothing, another))
    assert not np.allclose(plain, other, rtol=1e-3, atol=1e-3)


@pytest.mark.long_cases("onnxruntime")
def test_a_prompt_is_rewritten_as_the_manifest_says(edited: Loader) -> None:
    def rewriting(stated: dict[str, Any]) -> None:
        stated["prompt_rewrite"] = {"left_out": 2, "first_token": 40, "eos_token_id": 1}

    tokens = edited("mistral", rewriting).generate(PROMPT, max_new_tokens=1)
    assert tokens[:, :-1].tolist() == [[40, 6, 7, 8, 9]]
    plain = edited("mistral", nothing).generate(np.array([[40, 6, 7, 8, 9]]), max_new_tokens=1)
    assert tokens.tolist() == plain.tolist()


def test_tokens_come_one_a_call_where_the_manifest_says_so(edited: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistral's graph takes any number: a manifest that says one has it called so, and the tokens are the same."""

    def single(stated: dict[str, Any]) -> None:
        stated["graphs"][0]["tokens_per_call"] = 1

    lengths: list[int] = []
    expected = edited("mistral", nothing).generate(PROMPT, max_new_tokens=2)
    model = edited("mistral", single)
    run = model.main.run
    monkeypatch.setattr(model.main, "run", lambda feeds: (lengths.append(feeds["input_ids"].shape[1]), run(feeds))[1])
    assert model.generate(PROMPT, max_new_tokens=2).tolist() == expected.tolist()
    assert lengths == [1] * 8


def change(key: str, value: Any, place: str = "inputs", number: int = 0) -> Edit:
    return lambda stated: stated["graphs"][0][place][number].update({key: value})


def rename_state(stated: dict[str, Any]) -> None:
    stated["graphs"][0]["cache"][0]["input"] = "past.0"


@pytest.mark.long_cases("runner-<lambda>-input_ids is \\\\['int64', .* in the graph, \\\\['int32'")
@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (change("name", "ids"), "ids is missing in the graph"),
        (change("dtype", "int32"), r"input_ids is \['int64', .* in the graph, \['int32'"),
        (change("shape", ["batch_size", 7]), r"input_ids is .* in the graph, \['int64', 'batch_size', '7'\]"),
        (change("name", "scores", "outputs"), "scores is missing in the graph"),
        (change("dtype", "float16", "outputs"), r"logits is \['float32'\] in the graph, \['float16'\]"),
        (rename_state, "past.0 is missing in the graph"),
        (lambda stated: stated["graphs"][0]["inputs"].pop(), f"missing in {MANIFEST}"),
    ],
)
def test_a_graph_that_the_manifest_does_not_fit_is_refused(edited: Loader, edit: Edit, why: str) -> None:
    with pytest.raises(UserError, match=r"E302.*is not what fx2onnx\.json says") as caught:
        edited("mistral", edit)
    assert caught.match(why)


def test_a_role_that_nothing_fills_is_one_clear_error(edited: Loader) -> None:
    with pytest.raises(UserError, match=r"E401.*model.onnx (needs|has no|is no)"):
        edited("mistral", change("role", "encoder_mask", number=1)).generate(PROMPT, max_new_tokens=1)


def test_a_condition_of_the_manifest_is_kept(edited: Loader) -> None:
    short = {"condition": "past_window_5_length != 3", "where": "my.py:3, in forward", "name": "past_window_5_length"}

    def limited(stated: dict[str, Any]) -> None:
        assert stated["graphs"][0]["conditions"] == []
        stated["graphs"][0]["conditions"] = [short | {"runs": [0, 3, 1, 1], "period": 1}]

    model = edited("mistral", limited)
    model(input_ids=PROMPT)
    assert model.generate(PROMPT[:, :1], max_new_tokens=3).shape == (1, 4)
    with pytest.raises(UserError, match=r"E401.*model.onnx is for sizes with past_window_5_length != 3") as caught:
        model.generate(PROMPT[:, :1], max_new_tokens=5)
    assert "my.py:3, in forward asks for it" in caught.value.why
    edited("mistral", lambda stated: stated.update(version=2))  # an old folder
