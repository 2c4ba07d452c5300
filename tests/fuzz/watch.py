"""What a case must not do, seen by Python's audit events: run code, start processes, connect, open files elsewhere.

What native code opens (safetensors) gives no event: targets look at what came back.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import STRANGE

ROOT = Path(__file__).parents[2]
_NEVER = frozenset({"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect",
                    "socket.getaddrinfo", "webbrowser.open"})  # fmt: skip
_OWN = tuple({os.path.realpath(place) for place in (
    ROOT, sys.prefix, sys.base_prefix, *site.getsitepackages(), *sysconfig.get_paths().values(), "/proc", "/sys", "/dev", "/etc/os-release",
)})  # fmt: skip
_seen: list[str] = []
_inside: list[str] = []
"""The folder of the case that runs."""


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _inside:
        return
    if event in _NEVER:
        _seen.append(f"{event} {args!r:.200}")
    elif event == "open":
        if isinstance(args[0], str | bytes | os.PathLike) and not _is_allowed(os.fsdecode(args[0])):
            _seen.append(f"open {args[0]!r}")
    elif event == "ctypes.dlopen":
        if "/" in str(args[0]) and not _is_allowed(str(args[0])):
            _seen.append(f"dlopen {args[0]}")
    elif event in ("compile", "import", "exec"):
        code = args[0] if event != "exec" else getattr(args[0], "co_filename", "")
        text = code.decode(errors="replace") if isinstance(code, bytes) else str(code)
        if STRANGE in text or (event == "exec" and text.startswith(_inside[0])):
            _seen.append(f"{event} {text:.200}")


def _is_allowed(path: str) -> bool:
    real = os.path.realpath(path)  # links that stay inside are right
    return any(real == place or real.startswith(place + os.sep) for place in (_inside[0], *_OWN))


sys.addaudithook(_watch)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """What was seen inside is in the list."""
    _seen.clear()
    _inside[:] = [os.path.realpath(folder)]
    try:
        yield _seen
    finally:
        _inside.clear()
