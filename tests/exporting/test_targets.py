"""Where a file may be written: no device, no folder, no input; and what else lies there stays."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.base.targets import check_target
from fx2onnx.files.staging import PREFIX, check_folder, locked, replacing, sweep
from fx2onnx.irx.model_files import data_name, external_files, is_file_of

MODULE = torch.nn.Linear(64, 64)
X = torch.ones(2, 64)


def export(path: Any, scale: float = 1.0, **options: Any) -> None:
    module = torch.nn.Linear(64, 64)
    with torch.no_grad():
        module.weight.fill_(scale)
        module.bias.zero_()
    fx2onnx.export(module, (X,), path, external_data=True, **options)


def scale_of(path: Path) -> float:
    """What the weights of the file are full of, as onnxruntime reads them."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    (number,) = np.unique(y)
    return float(number) / 64


def make_socket(path: Path) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: os.mkfifo(path), "a pipe"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/null"), "a character device"),
        (lambda path: path.mkdir(), "it is a folder"),
    ],
)
def test_what_is_no_regular_file_is_refused(make: Any, words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("m.onnx"))
    before = os.lstat("m.onnx")
    for write in (
        lambda: fx2onnx.export(MODULE, (X,), "m.onnx"),
        lambda: fx2onnx.export(MODULE, (X,)).save("m.onnx"),
        lambda: fx2onnx.export(MODULE, (X,), profile=Path("m.onnx").rename("p.html")),
    ):
        with pytest.raises(UserError, match=words) as caught:
            write()
        assert caught.value.code == "E301"
        if os.path.lexists("p.html"):
            os.rename("p.html", "m.onnx")
    after = os.lstat("m.onnx")
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_the_null_device_stays_a_device() -> None:
    with pytest.raises(UserError, match="a character device"):
        fx2onnx.export(MODULE, (X,), "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("a\0b.onnx", "NUL"),
        (b"a\0b.onnx", "NUL"),
        (b"\xff\xfe.onnx", "UTF-8"),
        ("\udcff.onnx", "UTF-8"),
        ("x" * 300 + ".onnx", "File name too long"),
        (7.5, "no path"),
        (["m.onnx"], "no path"),
    ],
)
def test_paths_that_are_none(path: Any, words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        fx2onnx.export(MODULE, (X,), path)
    assert caught.value.code == "E301"
    assert os.listdir(tmp_path) == []


def test_a_path_of_bytes_is_a_path(tmp_path: Path) -> None:
    fx2onnx.export(MODULE, (X,), os.fsencode(tmp_path / "m.onnx"))
    assert os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("length", [100, 200, 201, 240, 255])
def test_long_names(length: int, tmp_path: Path) -> None:
    """Two that differ at their end alone do not share a file, and each replaces its own."""
    one, other = (tmp_path / f"{'ä' * ((length - 6) // 2)}{letter * (1 + (length - 6) % 2)}.onnx" for letter in "ab")
    assert len(os.fsencode(one.name)) == length
    export(one, 1)
    export(other, 2)
    export(one, 3)
    assert (scale_of(one), scale_of(other)) == (3, 2)
    assert len(os.listdir(tmp_path)) == 4


def test_a_folder_in_the_place_of_the_weights(tmp_path: Path) -> None:
    """Under the name that torch.onnx.export gives them, and under the very name that they would get."""
    (tmp_path / "m.onnx.data").mkdir()
    export(tmp_path / "m.onnx", 1)
    assert scale_of(tmp_path / "m.onnx") == 1
    export(tmp_path / "n.onnx", 2)
    (data,) = tmp_path.glob("n.onnx.*.data")
    blocked = tmp_path / data.name.replace("n.onnx", "m.onnx")
    blocked.mkdir()
    with pytest.raises(UserError, match="E301"):
        export(tmp_path / "m.onnx", 2)
    assert scale_of(tmp_path / "m.onnx") == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(PREFIX)]


def test_weights_of_another_exporter_are_replaced_with_their_graph(tmp_path: Path) -> None:
    export(tmp_path / "m.onnx", 1)
    model = onnx.load(tmp_path / "m.onnx")
    for path in tmp_path.iterdir():
        path.unlink()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    (tmp_path / "n.onnx.data").write_text("of another model")
    export(tmp_path / "m.onnx", 2)
    export(tmp_path / "n.onnx", 3)
    assert (scale_of(tmp_path / "m.onnx"), scale_of(tmp_path / "n.onnx")) == (2, 3)
    assert len(os.listdir(tmp_path)) == 5
    assert (tmp_path / "n.onnx.data").read_text() == "of another model", "no graph said that it was its"


def test_the_same_export_has_the_same_names_and_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        export(tmp_path / folder / "m.onnx", 1)
    export(tmp_path / "b" / "m.onnx", 1)
    found = [{path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("a", "b")]
    assert found[0] == found[1]
    assert len(found[0]) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_sticky_folder(tmp_path: Path) -> None:
    """Somebody else's model in a folder such as /tmp cannot be replaced, and stays whole."""
    export(tmp_path / "m.onnx", 1)
    for path in tmp_path.iterdir():
        os.chown(path, 12345, 12345)
    os.chown(tmp_path, 12345, 12345)
    tmp_path.chmod(0o1777)
    for parent in list(tmp_path.parents)[:3]:
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    child = os.fork()
    if child == 0:
        code = 9
        try:
            os.setuid(23456)
            with pytest.raises(UserError, match="E301"):
                export(tmp_path / "m.onnx", 2)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_inputs_are_not_written_over(tmp_path: Path) -> None:
    given = tmp_path / "given.npy"
    given.write_bytes(b"numbers")
    (tmp_path / "soft").symlink_to(given)
    os.link(given, tmp_path / "hard")
    for name in ("given.npy", "soft", "hard", "../" + tmp_path.name + "/given.npy"):
        with pytest.raises(UserError, match="reads that file"):
            check_target(tmp_path / name, inputs=[tmp_path / "missing", given])
    check_target(tmp_path / "other", inputs=[given])


def test_a_profile_is_not_written_over_the_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reads that file or writes something else"):
        fx2onnx.export(MODULE, (X,), tmp_path / "m.json", profile=tmp_path / "m.json")
    assert os.listdir(tmp_path) == []


def test_files_of_a_model(tmp_path: Path) -> None:
    export(tmp_path / "m.onnx")
    (data,) = tmp_path.glob("*.data")
    assert external_files(tmp_path / "m.onnx") == [str(data)]
    target = str(tmp_path / "m.onnx")
    assert is_file_of(target, target)
    assert is_file_of(data, target)
    assert is_file_of(tmp_path / data_name(target, "0" * 32), target), "not there yet"
    assert not is_file_of(tmp_path / "n.onnx", target)
    assert not is_file_of(tmp_path / data.name.replace("m.onnx", "n.onnx"), target)


class TestLeftovers:
    def test_of_the_dead_go_and_those_of_the_living_stay(self, tmp_path: Path) -> None:
        dead = tmp_path / f"{PREFIX}0123456789abcdef"
        dead.mkdir()
        (dead / "graph").write_bytes(b"half")
        (tmp_path / f"{PREFIX}mine").mkdir()
        outer = replacing(tmp_path / "slow.json")
        slow = outer.__enter__()
        slow.write_text("{}")
        export(tmp_path / "m.onnx")
        assert not dead.exists()
        assert (tmp_path / f"{PREFIX}mine").exists(), "no stage is called so"
        outer.__exit__(None, None, None)
        assert (tmp_path / "slow.json").read_text() == "{}"

    @pytest.mark.long
    def test_of_a_killed_export(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys, numpy as np\n"
            "from fx2onnx.irx import data_file\n"
            "data_file._write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
            "import torch, fx2onnx\n"
            "fx2onnx.export(torch.nn.Linear(64, 64), (torch.ones(2, 64),), sys.argv[1], external_data=True)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.onnx")], check=False)
        assert done.returncode < 0
        assert len(os.listdir(tmp_path)) == 2  # the graph and the weights
        sweep(tmp_path)
        assert os.listdir(tmp_path) == []

    def test_a_link_named_as_one_is_left_alone(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file").write_text("kept")
        place = tmp_path / "place"
        place.mkdir()
        (place / f"{PREFIX}0123456789abcdef").symlink_to(precious)
        sweep(place)
        assert (precious / "file").read_text() == "kept"

    def test_without_locks_old_ones_go(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fx2onnx.files.staging.fcntl", None)
        old, young = (tmp_path / f"{PREFIX}{digit * 16}" for digit in "01")
        for stage in (old, young):
            stage.mkdir()
        os.utime(old, (0, 0))
        export(tmp_path / "m.onnx")
        assert (old.exists(), young.exists()) == (False, True)
        assert scale_of(tmp_path / "m.onnx") == 1


def test_a_folder_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.files.staging.LOCK_SECONDS", 0.05)
    with locked(tmp_path), pytest.raises(UserError, match="held the folder"):
        export(tmp_path / "m.onnx")
    with locked(tmp_path, shared=True), pytest.raises(UserError, match="held the folder"):
        export(tmp_path / "m.onnx")
    export(tmp_path / "m.onnx")
    assert len(os.listdir(tmp_path)) == 2


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("fx2onnx.files.staging.os.listdir", refuse)
    export(tmp_path / "m.onnx")
    monkeypatch.undo()
    assert scale_of(tmp_path / "m.onnx") == 1


def test_the_model_has_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        export(tmp_path / "m.onnx")
        with replacing(tmp_path / "report.json") as path:
            path.write_text("{}")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_copies_of_a_model_and_its_weights_can_be_moved(tmp_path: Path) -> None:
    export(tmp_path / "m.onnx", 5)
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    assert scale_of(tmp_path / "elsewhere" / "m.onnx") == 5


class MovesAway(torch.nn.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.chdir(self.folder)
        return x + 1


def test_files_lie_where_the_export_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    module = MovesAway(tmp_path / "elsewhere")
    fx2onnx.export(module, (torch.ones(2),), "model.onnx", report="report.json", profile="profile.json", verify=True)
    assert os.getcwd() == str(tmp_path / "elsewhere"), "as in eager PyTorch"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "model.onnx", "profile.json", "report.json"]
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("name", ["missing/out", "two words/a/out"])
def test_a_folder_that_is_lacking_is_made_by_the_next_step(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    with pytest.raises(UserError, match="E301") as caught:
        check_folder(target)
    subprocess.run(caught.value.next[0], shell=True, check=True)
    assert check_folder(target) == target
