"""``fx2onnx.json``: every field is checked, and a source is followed into its own folder only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.base.folder_commit import MANIFEST
from fx2onnx.generation.manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    read_manifest,
    source_within,
    trusted_source,
)


def written(folder: Path, **fields: Any) -> Path:
    (folder / MANIFEST_FILE).write_text(json.dumps(fields))
    return folder


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    assert MANIFEST_FILE == MANIFEST
    assert read_manifest(tmp_path) == Manifest()
    written(
        tmp_path,
        source="hf:gpt2",
        task="text-generation",
        seed=3,
        dtype="float16",
        batch=None,
        baked={"grid": [[1, 2], [3, 4]], "mask": [True], "size": 1.5},
        own_prompt={"left_out": 1},
        codebook_delays=[0, 1],
        version=1,
        files={"model.onnx": {"bytes": 7, "digest": "0123456789abcdef0123456789abcdef"}},
        later={"any": [{}]},
    )
    assert read_manifest(tmp_path) == Manifest(
        source="hf:gpt2",
        task="text-generation",
        seed=3,
        baked={"grid": [[1, 2], [3, 4]], "mask": [True], "size": 1.5},
        own_prompt={"left_out": 1},
        codebook_delays=(0, 1),
        version=1,
        files={"model.onnx": FileEntry(7, "0123456789abcdef0123456789abcdef")},
        others={"dtype": "float16", "later": {"any": [{}]}},
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", 3),
        ("source", "hf:a\nb"),
        ("task", ["x"]),
        ("seed", "1"),
        ("seed", True),
        ("seed", 2**64),
        ("baked", [1]),
        ("baked", {"grid": [[1], [2, 3]]}),
        ("baked", {"grid": "1"}),
        ("baked", {"grid": [2**63]}),
        ("own_prompt", {"left_out": -1}),
        ("own_prompt", {"left_out": 1.5}),
        ("codebook_delays", [-1]),
        ("codebook_delays", [10**9]),
        ("codebook_delays", {"0": 1}),
        ("version", 1.0),
        ("files", ["model.onnx"]),
        ("files", {"model.onnx": 7}),
        ("files", {"model.onnx": {"bytes": -1, "digest": ""}}),
        ("files", {"model.onnx": {"bytes": 1}}),
        ("batch", 0),
        ("weights", {}),
    ],
)
def test_a_field_of_another_type_is_named(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_manifest(written(tmp_path, **{field: value}))
    assert (caught.value.code, MANIFEST_FILE in caught.value.what) == ("E302", True)
    assert caught.value.why.startswith(f"{field} is ")


@pytest.mark.parametrize("text", ["{", "[]", '{"seed": NaN}', '{"x": ' + "[" * 5000, "\ud800"])
def test_a_file_that_is_no_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UserError, match=f"E302.*{MANIFEST_FILE}"):
        read_manifest(tmp_path)


def test_a_link_to_a_manifest_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / MANIFEST_FILE).symlink_to(written(tmp_path, seed=1) / MANIFEST_FILE)
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
    assert source_within(tmp_path, Manifest(source=source)) == followed.format(folder=tmp_path.resolve())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("os:system?command=x", "import code"),
        ("torchvision:resnet18", "hf: alone"),
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
        source_within(folder, Manifest(source=source))
    assert (caught.value.code, why in caught.value.why, source in caught.value.what) == ("E302", True, True)
    assert [step.rpartition(": ")[2].split(" ")[0] for step in caught.value.next] == ["--source", "--trust-source"]


def test_a_type_is_no_folder_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="folder 'gpt2' here"):
        source_within(tmp_path / "out", Manifest(source="hf:gpt2"))


def test_a_trusted_source_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "ckpt").mkdir()
    assert trusted_source(tmp_path / "out", Manifest(source="hf:../ckpt?a=1")) == f"hf:{tmp_path.resolve()}/ckpt?a=1"
    assert trusted_source(tmp_path / "out", Manifest(source="my.models:make?a=1")) == "my.models:make?a=1"
