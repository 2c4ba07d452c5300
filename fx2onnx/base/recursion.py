"""Room on the stack for what is called below the user's code."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

FRAMES = 1000
"""What an export has above forward (20) and below it (an operator that PyTorch decomposes on fake tensors: 150; torch.export
and its compiler of Python: several hundred), where eager PyTorch has almost nothing."""

_LOCK = threading.Lock()
_inside = 0
_limits = (0, 0)
"""Before and since the first one that is inside."""


@contextlib.contextmanager
def room_to_recurse() -> Iterator[None]:
    """Python's recursion limit, which all threads share, is higher inside by ``FRAMES``: what runs in eager PyTorch just
    below the limit has to run here, too. A limit that is set inside stays.
    """
    global _inside, _limits
    with _LOCK:
        if not _inside:
            limit = sys.getrecursionlimit()
            _limits = limit, limit + FRAMES
            sys.setrecursionlimit(limit + FRAMES)
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            before, raised = _limits
            if not _inside and sys.getrecursionlimit() == raised:
                sys.setrecursionlimit(before)


def limit_of_user() -> int:
    """The limit without that room."""
    return _limits[0] if _inside else sys.getrecursionlimit()
