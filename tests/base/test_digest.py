"""``known_digest`` is of the content, whatever times and size say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fx2onnx.files import digest


@pytest.mark.parametrize("fresh_ns", [digest._FRESH_NS, 0])
def test_other_content_of_the_same_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_ns: int
) -> None:
    monkeypatch.setattr(digest, "_FRESH_NS", fresh_ns)
    path = tmp_path / "file"
    path.write_bytes(b"one")
    before = path.stat()
    first = digest.known_digest(path)
    for content in (b"two", b"six", b"ten"):
        with path.open("r+b") as stream:
            stream.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if fresh_ns == 0:  # the inode's own time is all that tells
            while path.stat().st_ctime_ns == before.st_ctime_ns:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            before = path.stat()
        assert digest.known_digest(path) == digest.digest_of(content) != first


def test_what_is_known_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_FRESH_NS", 0)
    path = tmp_path / "file"
    path.write_bytes(b"one")
    known = digest.known_digest(path)
    monkeypatch.setattr(digest, "digest_of_file", lambda path: "read")
    assert digest.known_digest(path) == known


def test_what_was_just_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_digest_of", lambda *state: "known")
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert digest.known_digest(path) == digest.digest_of(b"one")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert digest.known_digest(tmp_path) is None
    assert digest.known_digest(tmp_path / "none") is None
