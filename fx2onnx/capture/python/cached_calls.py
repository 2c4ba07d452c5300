"""Whether a line calls a function that keeps its results (``functools.lru_cache``), by its bytecode.

Such a call takes the hash of its arguments, as a dict does for its key, but any hash will do that equal arguments share.
"""

from __future__ import annotations

import dis
import functools
import inspect
from types import CodeType, FrameType


def calls_cached(frame: FrameType) -> bool:
    """Whether ``frame`` is in a call of a function made by ``functools.lru_cache``: ``f(n)``, ``self.f(n)``, ``a.b.f(n)``."""
    path = _callee(frame.f_code, frame.f_lasti)
    if not path:
        return False
    found: object = frame.f_locals.get(path[0], frame.f_globals.get(path[0]))
    for name in path[1:]:
        found = inspect.getattr_static(found, name, None)
    found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    return any(isinstance(one, functools._lru_cache_wrapper) for one in (found, getattr(found, "__wrapped__", None)))


@functools.lru_cache(maxsize=1024)
def _callee(code: CodeType, offset: int) -> tuple[str, ...]:
    """The name that the call at ``offset`` calls, with those of the objects that it is taken from; empty where it is none.

    The instructions that load a callee stand in the source where the call begins, its arguments further on.
    """
    instructions = list(dis.get_instructions(code))
    # While a function of Python runs, its caller is at the end of the call's instruction: it has no offset of its own.
    place = max((place for place, one in enumerate(instructions) if one.offset <= offset), default=None)
    if place is None or not instructions[place].opname.startswith("CALL"):
        return ()
    begin = _begin(instructions[place])
    path: list[str] = []
    for one in instructions[:place]:
        if _begin(one) != begin or not one.opname.startswith("LOAD_"):
            continue
        if one.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            path.append(str(one.argval))
        elif one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")):
            path = [str(one.argval)]
    return tuple(path)


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (positions.lineno, positions.col_offset) if positions is not None else (None, None)
