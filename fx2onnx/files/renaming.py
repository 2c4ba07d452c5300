"""Renaming over a file that exists, also where the system is Windows."""

from __future__ import annotations

import contextlib
import filecmp
import os
import time

IS_WINDOWS = os.name == "nt"
OPEN_SECONDS = 2.0
"""How long to wait for a program that has the file open, such as one that looks for viruses."""
_POLL_SECONDS = 0.05
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
        time.sleep(_POLL_SECONDS)


def _is_same(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    with contextlib.suppress(OSError):
        return filecmp.cmp(source, target, shallow=False)
    return False
