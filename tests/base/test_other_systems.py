"""What Windows and macOS lack or refuse, taken away or refused here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import _relative, relative_path
from fx2onnx.files import folder_files, staging
from fx2onnx.files.staging import replace

ROOT = Path(__file__).parents[2]
WITHOUT = """
import os, signal, sys
import numpy, onnx, onnx_ir, onnxruntime, psutil, torch  # they know their systems
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in dir(os):
    if name in {
        "fork", "forkpty", "pread", "preadv", "pwrite", "posix_fallocate", "posix_fadvise", "posix_spawn", "O_CLOEXEC", "O_NONBLOCK",
        "O_DIRECTORY", "O_NOFOLLOW", "O_SYNC", "getuid", "geteuid", "getgid", "chown", "fchmod", "fchown", "sysconf", "statvfs",
        "sched_getaffinity", "sendfile", "copy_file_range", "mkfifo", "uname", "getloadavg", "killpg", "setsid", "link",
    }:
        delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "setitimer", "alarm", "pthread_kill"):
    if hasattr(signal, name):
        delattr(signal, name)
opened = open
def open_outside_proc(file, *args, **kwargs):
    if str(file).startswith(("/proc/self", "/sys/fs/cgroup")):
        raise FileNotFoundError(file)
    return opened(file, *args, **kwargs)
import builtins
"""
EXPORT = """
import torch, fx2onnx
os_open = os.open
def open_here(path, *args, **kwargs):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(path)
    return os_open(path, *args, **kwargs)
os.open, builtins.open = open_here, open_outside_proc
module = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.ReLU(), torch.nn.Linear(600, 4))
result = fx2onnx.export(
    module, (torch.randn(2, 600),), "m.onnx", external_data=True, durable=True, verify=True, profile="p.json",
    dynamic_shapes=({0: "batch"},),
)
fx2onnx.export(module, (torch.randn(2, 600),), "m.onnx", external_data=True)
print(result.report.verdict["ok"], sorted(name[-5:] for name in os.listdir(".")))
"""


def run(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder.parent),
        **variables,
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_an_export_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    done = run(WITHOUT + EXPORT, tmp_path)
    assert done.stdout.split("\n")[0] == "True ['.data', '.json', '.onnx']", done.stderr


@pytest.mark.long
def test_no_file_is_read_or_written_in_the_encoding_of_the_place(tmp_path: Path) -> None:
    """Python warns of each file that is opened without one; torch's own are not ours."""
    code = """
import warnings
import fx2onnx.cli.main, torch, fx2onnx
warnings.filterwarnings("error", category=EncodingWarning, module=r"fx2onnx\\.")
exec(open("program.py", encoding="utf-8").read())
"""
    (tmp_path / "program.py").write_text("import os, builtins\nopen_outside_proc = open\n" + EXPORT, encoding="utf-8")
    done = run(code, tmp_path, PYTHONWARNDEFAULTENCODING="1")
    assert done.stdout.startswith("True"), done.stderr


@pytest.mark.long
def test_commands_print_where_the_terminal_has_few_characters(tmp_path: Path) -> None:
    code = """
import sys
from fx2onnx.cli.main import main
READ = [["inspect", "m.onnx"], ["run", "m.onnx"], ["ops", "*gelu*"]]
for encoding, commands in (("ascii", [["export", "zoo:mnist_cnn", "-o", "m.onnx"], *READ]), ("cp1252", READ)):
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=encoding, errors="strict")
    for arguments in commands:
        sys.argv = ["fx2onnx", *arguments]
        try:
            main()
        except SystemExit as end:
            assert not end.code, (encoding, arguments, end.code)
"""
    done = run(code, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert (tmp_path / "m.onnx").is_file()


class Refusing:
    """``os.replace`` as Windows has it while another program has the target open."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.own = os.replace

    def __call__(self, source: Any, target: Any) -> None:
        if self.times and os.path.exists(target):
            self.times -= 1
            raise PermissionError(13, "the file is used by another process", os.fspath(target))
        self.own(source, target)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setattr(staging, "IS_WINDOWS", True)
    monkeypatch.setattr(staging, "OPEN_SECONDS", 0.2)
    source, target = tmp_path / "new", tmp_path / "old"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    return source, target


def test_a_file_that_is_open_for_a_moment_is_waited_for(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", Refusing(2))
    replace(*files)
    assert files[1].read_bytes() == b"new"
    assert not files[0].exists()


def test_an_open_file_with_the_same_bytes_stays(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", Refusing(-1))
    files[1].write_bytes(b"new")
    replace(*files)
    assert not files[0].exists()


def test_a_file_that_stays_open_is_one_clear_error(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", Refusing(-1))
    with pytest.raises(UserError, match="close the program that has it open") as caught:
        staging.write_text(files[1], "text")
    assert caught.value.code == "E301"
    assert files[1].read_bytes() == b"old"
    assert sorted(path.name for path in files[1].parent.iterdir()) == ["new", "old"]


def test_elsewhere_a_refusal_is_final_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(-1)
    monkeypatch.setattr(os, "replace", refusing)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"new")
    with pytest.raises(PermissionError):
        replace(tmp_path / "new", tmp_path / "old")
    assert refusing.times == -2


def test_files_are_opened_without_changing_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    own, binary = os.open, 0o100000000

    def spy(path: Any, flag: int, *args: Any, **kwargs: Any) -> int:
        flags.append(flag)
        return own(path, flag & ~binary, *args, **kwargs)

    for module in (staging, folder_files):
        monkeypatch.setattr(module, "BINARY", binary)
    monkeypatch.setattr(os, "open", spy)
    staging.open_to_write(tmp_path / "one").close()
    (tmp_path / "two.json").write_text("{}", encoding="utf-8")
    folder_files.read_object(tmp_path / "two.json")
    assert [bool(flag & binary) for flag in flags] == [True, True]


def test_folders_are_not_opened_to_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "IS_WINDOWS", True)
    opened: list[Any] = []
    own = os.open
    monkeypatch.setattr(os, "open", lambda path, *args: opened.append(path) or own(path, *args))
    staging.sync(tmp_path)
    assert not opened


def test_paths_on_another_drive_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_drive(path: Any, start: Any = None) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    assert relative_path("/a/b/c", "/a") == os.path.join("b", "c")
    monkeypatch.setattr(os.path, "relpath", other_drive)
    assert relative_path("/d/model.py", "/c") == "/d/model.py"
    _relative.cache_clear()
    assert _relative("/d/model.py", "/c") == "model.py"
    _relative.cache_clear()
