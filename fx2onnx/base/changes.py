"""Changes of an export outside itself are put back, wherever an exception strikes: Ctrl-C comes between any two steps.

Who changes something says first how it is put back (``before_change``); to put back what was not changed, or twice, does
no harm. ``Changes`` puts back at the end of its block. The outermost block is two, ``with Changes(), Changes():``, as an
interrupt may come on the way to the end of the inner one.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator

_TRIES = 100
"""The number of tries of a step that exceptions interrupt; then it is left out, and the others still done."""


class _Journal(threading.local):
    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        """Functions that put back what this thread changed, in the order of the changes."""


_JOURNAL = _Journal()


def before_change(put_back: Callable[[], object]) -> None:
    """``put_back`` undoes what the caller does next. Only inside ``Changes``."""
    _JOURNAL.steps.append(put_back)


class Changes:
    """A block; what is changed inside is put back at its end, the last first."""

    def __enter__(self) -> None:
        self._mark = len(_JOURNAL.steps)

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        try:
            if error is not None:
                _close_left_open(error)
        finally:
            _put_back(self._mark)


def _put_back(mark: int) -> None:
    steps, tries = _JOURNAL.steps, 0
    struck: BaseException | None = None
    while len(steps) > mark:
        try:
            steps[-1]()
            steps.pop()
            tries = 0
        except BaseException as error:  # an interrupt: the step is done again, then the others
            struck, tries = error, tries + 1
            if tries > _TRIES:
                steps.pop()
    if struck is not None:
        raise struck


def _close_left_open(error: BaseException) -> None:
    """End the generators of ``with`` blocks whose entry or exit was interrupted: the traceback keeps them alive."""
    for each in _with_contexts(error):
        for frame, _ in reversed([*traceback.walk_tb(each.__traceback__)]):
            manager = frame.f_locals.get("self") if frame.f_code.co_filename == contextlib.__file__ else None
            if isinstance(manager, contextlib._GeneratorContextManager):
                with contextlib.suppress(Exception):  # what its own cleaning up raises matters less than ``error``
                    manager.gen.close()


def _with_contexts(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__context__
