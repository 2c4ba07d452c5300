"""Files of a folder that somebody else made: what is read, and what is refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object

HASH = "403450e234d65943a7dcf7e05a771ce3c92faa84dd07db4ac20f592037a1e4bd"


def refusal(call: Any, *args: Any, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert caught.value.code == "E302"
    return caught.value


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A cache of huggingface_hub with one file."""
    entry = tmp_path / "hub" / "models--owner--name"
    folder = entry / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    (entry / "blobs").mkdir()
    (entry / "blobs" / HASH).write_text('{"a": 1}')
    (folder / "config.json").symlink_to(Path("../../blobs") / HASH)
    return folder


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "", "a\0b", "a\nb", "x" * 300, "\udc80", 3, None, ["a"], ".."]
)
def test_names_that_lead_nowhere_or_out(name: Any, tmp_path: Path) -> None:
    assert "said by me" in refusal(inside, tmp_path, name, said_by="said by me").render()


def test_names_in_the_folder(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b.json") == tmp_path / "a" / "b.json"
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    assert inside(tmp_path, "link").read_text() == "{}"
    (tmp_path / "folder").mkdir()
    (tmp_path.parent / "seen").unlink(missing_ok=True)
    (tmp_path.parent / "seen").symlink_to(tmp_path)
    assert inside(tmp_path.parent / "seen", "real").is_file(), "the folder itself may be a link"


@pytest.mark.parametrize("target", ["../outside", "/etc/passwd", "loop"])
def test_links_that_leave_the_folder(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").write_text("{}")
    (folder / "loop").symlink_to(target)
    refusal(inside, folder, "loop")


def test_a_folder_that_is_a_link_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder" / "sub").symlink_to(tmp_path / "elsewhere")
    refusal(inside, tmp_path / "folder", "sub/model.safetensors")


def test_a_snapshot_of_a_cache_links_to_the_blobs_of_its_entry(snapshot: Path) -> None:
    assert read_object(inside(snapshot, "config.json")) == {"a": 1}
    (snapshot / "other").symlink_to(snapshot.parents[2] / "models--other--name" / "blobs" / HASH)
    refusal(inside, snapshot, "other")
    (snapshot / "below").symlink_to(Path("../../blobs/sub") / HASH)
    refusal(inside, snapshot, "below")
    moved = snapshot.parents[1] / "elsewhere" / "0123abc"
    moved.parent.mkdir()
    snapshot.rename(moved)
    refusal(inside, moved, "config.json")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[1]", "a list"),
        (b"null", "NoneType"),
        (b"\xff\xfe{}", "utf-8"),
        (b'{"a": "\\ud800"}', "no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested"),
    ],
)
def test_malformed_json(text: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    error = refusal(read_object, path)
    assert str(path) in error.what
    assert why in error.why


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(number: str, tmp_path: Path) -> None:
    path = tmp_path / "fx2onnx.json"
    path.write_text(f'{{"a": {number}}}')
    assert "no JSON number" in refusal(read_object, path, finite=True).why
    assert list(read_object(path)) == ["a"], "configs of transformers have them"


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("fifo.json", "folder.json"):
        assert "no regular file" in refusal(read_object, tmp_path / name).why
    refusal(read_object, tmp_path / "missing.json")
    open_files = len(os.listdir("/proc/self/fd"))
    refusal(read_object, tmp_path / "folder.json")
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    assert "larger than 16 MiB" in refusal(read_object, path).why
