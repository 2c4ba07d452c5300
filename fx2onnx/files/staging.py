"""Files that appear whole or not at all: written beside the target under another name, then renamed.

A stage is a file or a folder ``.fx2onnx-<16 hex digits>`` that its writer holds a lock on. A writer that was killed holds none any
more, so the next one in the same folder knows the stage for a leftover and removes it.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import filecmp
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError

IS_WINDOWS = os.name == "nt"
OPEN_SECONDS = 2.0
"""Seconds to wait for a program that has the file open, such as a virus scanner."""
_RENAME_POLL_SECONDS = 0.05
BINARY = getattr(os, "O_BINARY", 0)
"""Flag of ``os.open`` without which Windows changes line ends."""


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """``os.replace``, also over a file that is open. Windows refuses that: the program that has it open is waited for, and a
    file that holds the same bytes stays. Raises OSError.
    """
    end = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not IS_WINDOWS or not os.path.isfile(target):
                raise
            if _is_same(source, target):
                os.unlink(source)
                return
            if time.monotonic() > end:
                raise
        time.sleep(_RENAME_POLL_SECONDS)


def _is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    with contextlib.suppress(OSError):
        return filecmp.cmp(source, target, shallow=False)
    return False


fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

if TYPE_CHECKING:
    from os import PathLike

PREFIX = ".fx2onnx-"
_STAGE = re.compile(re.escape(PREFIX) + "[0-9a-f]{16}")
LOCK_SECONDS = 60.0
"""The longest wait of a writer for the folder; another one holds it for some renames only."""
_POLL_SECONDS = 0.005
_ABANDONED_SECONDS = 24 * 3600.0
"""Age of a leftover where the system has no locks that show it."""
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""The error numbers of a lock that another process holds; any other says that there are no locks here."""


@contextlib.contextmanager
def locked(folder: str | PathLike[str], *, shared: bool = False) -> Iterator[None]:
    """Inside, no other process or thread renames in ``folder`` by way of this function; readers are ``shared``.

    The folder itself is locked, so nothing is left behind. Where the system has no locks, nothing is waited for.

    Raises:   UserError E301 where the folder stays locked for ``LOCK_SECONDS``.
    """
    lock = _Lock(folder)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while not lock.take(shared):
            if time.monotonic() > end:
                raise UserError(
                    "E301",
                    f"cannot write into '{os.fspath(folder)}'",
                    why=f"another process has held the folder for {LOCK_SECONDS:.0f} s",
                    next="end the other export, which hangs",
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        lock.release()


class _Lock:
    """A lock on a file or a folder, open until ``release`` or until the object goes: an interruption may keep the call from happening.

    It is free for all where the system has no locks, or what is to be locked cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._handles: list[int] = []
        if fcntl is not None:
            with contextlib.suppress(PermissionError):
                self._handles.append(os.open(path, os.O_RDONLY))

    @property
    def is_open(self) -> bool:
        """True if ``take`` can tell."""
        return bool(self._handles)

    def take(self, shared: bool = False) -> bool:
        """Return whether the lock was free."""
        try:
            for handle in self._handles:
                fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as cause:
            return cause.errno not in _HELD
        return True

    def release(self) -> None:
        """Unlock, too: a process forked meanwhile has the handle, and would go on holding the lock."""
        for handle in self._handles:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        # Taken from the list and closed without Python in between, so that an interruption can do neither twice nor half.
        with contextlib.suppress(IndexError):
            collections.deque(map(os.close, iter(self._handles.pop, None)), maxlen=0)

    __del__ = release


@contextlib.contextmanager
def staged(folder: str | PathLike[str]) -> Iterator[str]:
    """The path of a new folder in ``folder``, removed at the end with what is still in it. Its lock is taken: who writes
    into it by way of ``locked`` takes a folder inside.

    Raises:   OSError.
    """
    with _staged(folder, [os.mkdir]) as (stage,):
        yield stage


@contextlib.contextmanager
def staged_files(folder: str | PathLike[str], count: int) -> Iterator[list[str]]:
    """The paths of new files in ``folder``, empty and locked; those that are still there at the end are removed.

    Raises:   OSError.
    """
    with _staged(folder, [_make_file] * count) as stages:
        yield stages


@contextlib.contextmanager
def _staged(folder: str | PathLike[str], makers: list[Callable[[str], object]]) -> Iterator[list[str]]:
    stages = [os.path.join(folder, f"{PREFIX}{os.urandom(8).hex()}") for _ in makers]
    alive: list[_Lock] = []
    try:
        with locked(folder):
            _sweep(folder)
            for make, stage in zip(makers, stages, strict=True):
                make(stage)
                alive.append(_Lock(stage))
                alive[-1].take()
        yield stages
    finally:
        try:
            for stage in stages:
                _remove(stage)
        finally:
            for lock in alive:
                lock.release()


def open_to_write(path: str | PathLike[str]) -> io.FileIO:
    """A new file, or an empty one. Nothing is truncated: what was, ext4 flushes to the disk when it is closed."""
    return open(os.open(path, os.O_CREAT | os.O_WRONLY | BINARY, 0o666), "wb", buffering=0)


def _make_file(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def _remove(stage: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(stage):
            shutil.rmtree(stage, ignore_errors=True)
        else:
            os.unlink(stage)


def sweep(folder: str | PathLike[str]) -> None:
    """Remove the stages in ``folder`` that writers left who were killed."""
    with locked(folder):
        _sweep(folder)


def _sweep(folder: str | PathLike[str]) -> None:
    try:
        names = [name for name in os.listdir(folder) if _STAGE.fullmatch(name)]
    except PermissionError:
        return
    for name in names:
        path = os.path.join(folder, name)
        if _is_abandoned(path):
            _remove(path)


def _is_abandoned(stage: str) -> bool:
    if os.path.islink(stage):
        return False
    try:
        if fcntl is None:
            return time.time() - os.stat(stage).st_mtime > _ABANDONED_SECONDS
        lock = _Lock(stage)
    except OSError:
        return False
    try:
        return lock.is_open and lock.take()
    finally:
        lock.release()


@contextlib.contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends well and disappears otherwise.

    Raises:   UserError E301 where the system refuses to write.
    """
    target = os.path.abspath(os.fspath(path))
    try:
        with staged(os.path.dirname(target)) as stage:
            temporary = Path(stage, f"new{Path(target).suffix}")
            yield temporary
            replace(temporary, target)
    except OSError as cause:
        raise cannot_write(path, cause) from cause


def write_text(path: str | PathLike[str], text: str) -> None:
    """``text`` in UTF-8, whole or not at all. Raises UserError E301."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def cannot_write(path: object, cause: OSError) -> UserError:
    return UserError(
        "E301",
        f"{path} cannot be written",
        why=str(cause),
        next="close the program that has it open, or choose another folder"
        if isinstance(cause, PermissionError) and IS_WINDOWS
        else "free space or choose another folder",
    )


def check_folder(target: Path) -> Path:
    """``target``, if files can be put there. Raises UserError E301."""
    try:
        is_there = target.exists()
    except OSError as cause:
        raise UserError("E301", f"cannot write into '{target}'", why=cause.strerror or str(cause)) from cause
    if is_there and not target.is_dir():
        raise UserError(
            "E301", f"cannot write into '{target}'", why="it is a file", next="give a folder: -o OUT_FOLDER"
        )
    if not is_there and target.suffix == ".onnx":
        raise UserError(
            "E301",
            f"cannot write a folder as '{target}'",
            why="several files are written, and the name is that of one ONNX file",
            next=f"give a folder: -o {target.with_suffix('')}",
        )
    parent = target if os.path.isdir(target) else target.absolute().parent
    if not parent.is_dir():
        raise UserError(
            "E301",
            f"cannot write into '{target}'",
            why=f"the folder '{parent}' does not exist",
            next=f"mkdir -p '{parent}'",
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError("E301", f"cannot write into '{target}'", why=f"no permission to write in '{parent}'")
    return target


def sync(path: str | PathLike[str]) -> None:
    """Wait until the disk has the file or the folder's names. Windows keeps no folder's names back, and opens none."""
    if IS_WINDOWS and os.path.isdir(path):
        return
    handle = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
