"""``fx2onnx.json``: every key is checked, and a source is followed into its own folder only."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.cli.generate import source_within, trusted_source
from fx2onnx.files.folder_commit import MANIFEST, VERSION, FileEntry
from fx2onnx.manifest.form import (
    OLDEST,
    CacheState,
    GraphForm,
    Grid,
    Manifest,
    Medium,
    Port,
    PromptRewrite,
    read_manifest,
)
from fx2onnx.sizes.stated import StatedCondition
from tools import manifest_schema

IDS = Port("input_ids", "tokens", "int64", ("batch_size", "sequence_length"))
LOGITS = Port("logits", "logits", "float32", ("batch_size", "sequence_length", 50))
SIZES = Port("sizes", "media", "int64", ("images", 3))
KEY = CacheState("0.key", "past.0", "present.0", "float32", ("batch_size", 2, "past", 4), "past", 2)
WINDOW = CacheState("1.key", "past.1", "present.1", "float32", ("batch_size", 2, "kept", 4), "window", 2, 4, 1.5)
SHORT = StatedCondition("past <= 1024", "model.py:7, in forward", "past", (0, 1025, 1), 1)
ORDER = StatedCondition("past >= kept", "", op="ge", left="past", right="kept")
DECODER = GraphForm("model.onnx", "decode", (IDS,), (LOGITS,), (KEY, WINDOW), conditions=(SHORT, ORDER))
PLAIN = Manifest(VERSION, (DECODER,))
FULL = Manifest(
    VERSION,
    (DECODER, GraphForm("image.onnx", "image", (SIZES,), ()), GraphForm("embed.onnx", "embed", (IDS,), ())),
    source="hf:gpt2",
    task="text-generation",
    seed=3,
    options={"dtype": "float16", "batch": None},
    media=(Medium("image", features="image_features", token=7, grid=Grid("sizes", 2)),),
    baked={"grid": [[1, 2], [3, 4]], "mask": [True], "size": 1.5},
    prompt_rewrite=PromptRewrite(left_out=1),
    codebook_delays=(0, 1),
    files={"model.onnx": FileEntry(7, "0123456789abcdef0123456789abcdef")},
    copied={},
)


def stated(manifest: Manifest = PLAIN) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(manifest)))  # type: ignore[no-any-return]


def written(folder: Path, values: dict[str, Any]) -> Path:
    (folder / MANIFEST).write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize("manifest", [PLAIN, FULL], ids=["plain", "full"])
def test_what_is_written_is_what_is_read(manifest: Manifest, tmp_path: Path) -> None:
    assert read_manifest(written(tmp_path, stated(manifest))) == manifest
    assert set(manifest.facts()) == set(stated(manifest)) - {"version", "files", "copied", "obsolete"}


def test_the_committed_schema_is_that_of_the_dataclasses() -> None:
    assert manifest_schema.FILE.read_text() == manifest_schema.text(), "python -m tools.manifest_schema"


def test_the_schema_and_the_reader_agree(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="not installed: the reader is tested alone")
    check = jsonschema.Draft202012Validator(manifest_schema.schema())
    for manifest in (PLAIN, FULL):
        assert not list(check.iter_errors(stated(manifest)))
    for path, value, _ in DAMAGES:
        if path != ["baked"]:  # JSON Schema has no word for arrays of one shape
            assert list(check.iter_errors(damaged(path, value))), path


REMOVED = "(removed)"


def damaged(path: list[str | int], value: Any) -> dict[str, Any]:
    """The full manifest with another value at ``path``."""
    values = stated(FULL)
    place: Any = values
    for key in path[:-1]:
        place = place[key]
    if value is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return values


DAMAGES: list[tuple[list[str | int], Any, str]] = [
    (["version"], 2.5, "version is 2.5, not a whole number"),
    (["source"], 3, "source is 3, not a text"),
    (["source"], "x" * 5000, "source is 'xxx"),
    (["task"], ["x"], "task is ['x'], not a text"),
    (["seed"], "1", "seed is '1', not a whole number"),
    (["seed"], True, "seed is True, not a whole number"),
    (["seed"], 2**64, "seed is 18446744073709551616, not a whole number from"),
    (["baked"], [1], "baked is [1], not an object"),
    (["prompt_rewrite", "left_out"], -1, "prompt_rewrite.left_out is -1, not"),
    (["prompt_rewrite", "left_out"], 1.5, "prompt_rewrite.left_out is 1.5, not"),
    (["prompt_rewrite", "last"], 1, "prompt_rewrite.last is not known; known are left_out"),
    (["codebook_delays"], [-1], "codebook_delays[0] is -1, not"),
    (["codebook_delays"], {"0": 1}, "codebook_delays is {'0': 1}, not a list"),
    (["files"], ["model.onnx"], "files is ['model.onnx'], not an object"),
    (["files", "model.onnx"], 7, "files.model.onnx is 7, not an object"),
    (["files", "model.onnx", "bytes"], -1, "files.model.onnx.bytes is -1, not"),
    (["files", "model.onnx", "digest"], "/../x", "files.model.onnx.digest is '/../x', not 32 hex digits"),
    (["files", "model.onnx", "digest"], REMOVED, "files.model.onnx.digest is missing"),
    (["files", "../model.onnx"], {"bytes": 1, "digest": "0" * 32}, "a key of files is '../model.onnx', not"),
    (["options", "x"], [1], "options.x is [1], not"),
    (["later"], {"any": 1}, "later is not known; known are version"),
    (["graphs"], REMOVED, "graphs is missing"),
    (["graphs"], None, "graphs is None, not a list"),
    (["graphs", 0, "file"], "../model.onnx", "graphs[0].file is '../model.onnx', not"),
    (["graphs", 0, "kind"], "decoder", "graphs[0].kind is 'decoder', not one of forward, decode"),
    (["graphs", 0, "inputs", 0, "role"], REMOVED, "graphs[0].inputs[0].role is missing"),
    (["graphs", 0, "inputs", 0, "role"], "words", "graphs[0].inputs[0].role is 'words', not one of tokens"),
    (["graphs", 0, "inputs", 0, "shape"], ["batch_size", 1.5], "graphs[0].inputs[0].shape[1] is 1.5, not"),
    (["graphs", 0, "cache", 1, "initial"], "zero", "graphs[0].cache[1].initial is 'zero', not a number"),
    (["graphs", 0, "cache", 1, "window"], -1, "graphs[0].cache[1].window is -1, not"),
    (["graphs", 0, "conditions", 0, "where"], REMOVED, "graphs[0].conditions[0].where is missing"),
    (["graphs", 0, "conditions", 0, "runs", 1], "x", "graphs[0].conditions[0].runs[1] is 'x', not"),
    (["graphs", 0, "conditions", 1, "op"], "is", "graphs[0].conditions[1].op is 'is', not one of"),
    (["media", 0, "kind"], "smell", "media[0].kind is 'smell', not one of image, audio"),
    (["media", 0, "grid", "merge_size"], 0, "media[0].grid.merge_size is 0, not"),
    (["media", 0, "grid", "input"], REMOVED, "media[0].grid.input is missing"),
]


@pytest.mark.parametrize(("path", "value", "why"), DAMAGES, ids=lambda value: str(value)[:30])
def test_a_damage_is_named_by_its_key(path: list[str | int], value: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_manifest(written(tmp_path, damaged(path, value)))
    assert (caught.value.code, MANIFEST in caught.value.what) == ("E302", True)
    assert caught.value.why.startswith(why)
    assert caught.value.next


CONTRADICTIONS: list[tuple[list[str | int], Any, str]] = [
    (["graphs"], [], "graphs are none, not one of forward and decode"),
    (["graphs", 0, "kind"], "prompt", "graphs are prompt, image, embed, not one of"),
    (["graphs", 1, "kind"], "forward", "graphs are decode, forward, embed, not one of"),
    (["graphs", 0, "cache"], [], "model.onnx takes new tokens alone"),
    (["graphs", 0, "cache", 0, "output"], None, "graphs[0].cache[0].output is null, and no other graph gives 0.key"),
    (["graphs", 0, "cache", 0, "axis"], 9, "graphs[0].cache[0].axis is 9"),
    (["graphs", 0, "cache", 0, "axis"], None, "graphs[0].cache[0].axis is None"),
    (["graphs", 0, "cache", 1, "window"], None, "graphs[0].cache[1].window is None"),
    (["graphs", 0, "inputs", 0, "role"], "embedded", "graphs[0].inputs have input_ids, which no graph gives"),
    (["graphs", 0, "conditions", 0, "period"], 2000, "graphs[0].conditions: the period of 'past <= 1024' is 2000"),
    (["graphs", 0, "conditions", 0, "runs"], [-1, 9], "graphs[0].conditions: the runs of 'past <= 1024' are no lengths"),
    (["graphs", 0, "conditions", 1, "left"], "", "graphs[0].conditions: 'past >= kept' is no comparison of sizes"),
    (["graphs", 0, "conditions", 0, "name"], "", "graphs[0].conditions: 'past <= 1024' is no comparison of sizes"),
    (["media", 0, "kind"], "audio", "media[0].kind is audio, and there is no such graph"),
    (["media", 0, "grid", "input"], "size", "media[0].grid is size, which no graph takes"),
    (["baked", "grid"], [[1], [2, 3]], "baked.grid is [[1], [2, 3]], not an array of numbers"),
    (["baked", "grid"], [2**63], "baked.grid is [9223372036854775808], not"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "why"), CONTRADICTIONS, ids=lambda value: str(value)[:30])
def test_what_contradicts_itself_is_refused(path: list[str | int], value: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="E302") as caught:
        read_manifest(written(tmp_path, damaged(path, value)))
    assert caught.value.why.startswith(why)


@pytest.mark.parametrize(
    ("version", "why", "next"),
    [
        (VERSION + 1, f"it is of version {VERSION + 1}, this fx2onnx knows {VERSION}", "upgrade"),
        (
            OLDEST - 1,
            f"it is of version {OLDEST - 1}, which does not say what each graph is",
            "export the folder again",
        ),
        (None, "it is of version 1", "export the folder again"),
    ],
)
def test_another_version_says_what_to_do(version: Any, why: str, next: str, tmp_path: Path) -> None:
    later = stated() | {"version": version, "more": 1}
    with pytest.raises(UserError, match="E302") as caught:
        read_manifest(written(tmp_path, later))
    assert caught.value.why.startswith(why)
    assert next in caught.value.next[0]


def test_version_2_knows_no_conditions_and_opens(tmp_path: Path) -> None:
    old = stated() | {"version": 2}
    del old["graphs"][0]["conditions"]
    manifest = read_manifest(written(tmp_path, old))
    assert (OLDEST, manifest.version, manifest.graphs[0].conditions) == (2, 2, ())
    assert [condition.holds({"past": 1025, "kept": 3}) for condition in DECODER.size_conditions()] == [False, True]


def test_version_3_knows_no_grids_and_opens(tmp_path: Path) -> None:
    old = stated(FULL) | {"version": 3}
    del old["media"][0]["grid"]
    assert read_manifest(written(tmp_path, old)).media == (replace(FULL.media[0], grid=None),)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"has no {MANIFEST}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"seed": NaN}', '{"x": ' + "[" * 5000, "\ud800"])
def test_a_file_that_is_no_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UserError, match=f"E302.*{MANIFEST}"):
        read_manifest(tmp_path)


def test_a_link_to_a_manifest_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST).symlink_to(written(tmp_path, stated()) / MANIFEST)
    with pytest.raises(UserError, match="leads out"):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "followed"),
    [
        ("hf:.", "hf:{folder}"),
        ("hf:sub?task=features", "hf:{folder}/sub?task=features"),
        ("hf:sub/../sub", "hf:{folder}/sub"),
        ("hf:gpt2", "hf:gpt2"),
        ("hf:gpt2?n_layer=1&sizes=[1, 2]&name='a'", "hf:gpt2?n_layer=1&sizes=[1, 2]&name='a'"),
    ],
)
def test_sources_in_the_folder_and_types_are_followed(source: str, followed: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert source_within(tmp_path, replace(PLAIN, source=source)) == followed.format(folder=tmp_path.resolve())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("os:system?command=x", "import code"),
        ("torchvision:resnet18", "gguf: alone"),
        ("hf:../ckpt", "outside"),
        ("hf:sub/../../ckpt", "outside"),
        ("hf:/", "outside"),
        ("hf:link", "outside"),
        ("hf:odd", "there is no folder"),
        ("hf:no/such", "there is no folder"),
        ("hf:" + "x" * 300, "there is no folder"),
        ("hf:" + "x/" * 200, "there is no folder"),
        ("hf:./" + "x" * 300, "there is no folder"),
        ("hf:gpt2?a=owner/name", "no literal"),
        ("hf:gpt2?a={1}", "no literal"),
        ("hf:gpt2?a-b=1", "no literal"),
    ],
)
def test_sources_that_lead_elsewhere_are_not(source: str, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "in?side").mkdir(parents=True)
    (folder / "odd").symlink_to("in?side")  # as a spec it would be cut off at the question mark
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "ckpt").mkdir()
    with pytest.raises(UserError) as caught:
        source_within(folder, replace(PLAIN, source=source))
    assert (caught.value.code, why in caught.value.why, source in caught.value.what) == ("E302", True, True)
    assert [step.rpartition(": ")[2].split(" ")[0] for step in caught.value.next] == ["--source", "--trust-source"]


def test_a_type_is_no_folder_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="folder 'gpt2' here"):
        source_within(tmp_path / "out", replace(PLAIN, source="hf:gpt2"))


def test_a_trusted_source_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "ckpt").mkdir()
    assert (
        trusted_source(tmp_path / "out", replace(PLAIN, source="hf:../ckpt?a=1")) == f"hf:{tmp_path.resolve()}/ckpt?a=1"
    )
    assert trusted_source(tmp_path / "out", replace(PLAIN, source="my.models:make?a=1")) == "my.models:make?a=1"
