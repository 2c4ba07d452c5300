"""Which variables of a function may be read from an instruction on, before they get another value."""

from __future__ import annotations

import dis
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType

_ENDS = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "INTERPRETER_EXIT")
"""Instructions that the next one does not follow."""


def read_later(frame: FrameType) -> frozenset[str]:
    """The variables that the frame may read as they are now; those that other functions share are among them."""
    code = frame.f_code
    return _live(code)[frame.f_lasti] | {*code.co_cellvars, *code.co_freevars}


@lru_cache(maxsize=256)
def _live(code: CodeType) -> Mapping[int, frozenset[str]]:
    """By the offset of the instruction that comes next."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: place for place, one in enumerate(instructions)}
    following = [_following(one, place, places, len(instructions)) for place, one in enumerate(instructions)]
    uses = [_uses(one) for one in instructions]
    caught = _read_by_handlers(following, uses)
    live = [caught] * len(instructions)
    changed = True
    while changed:
        changed = False
        for place in reversed(range(len(instructions))):
            after = caught.union(*(live[target] for target in following[place]))
            reads, writes = uses[place]
            before = reads | (after - writes)
            changed |= before != live[place]
            live[place] = before
    return {one.offset: live[place] for place, one in enumerate(instructions)}


def _following(one: dis.Instruction, place: int, places: Mapping[int, int], count: int) -> list[int]:
    jumps = [places[one.argval]] if one.opcode in (*dis.hasjrel, *dis.hasjabs) else []
    ends = one.opname.startswith(_ENDS) or place + 1 == count
    return jumps if ends else [*jumps, place + 1]


def _uses(one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """What an instruction reads and, before or after, gives a value. Of one that does both with two variables, both are read."""
    if "_FAST" not in one.opname:
        return frozenset(), frozenset()
    names = frozenset(one.argval if isinstance(one.argval, tuple) else (one.argval,))
    return (names, frozenset()) if "LOAD_" in one.opname else (frozenset(), names)


def _read_by_handlers(following: list[list[int]], uses: list[tuple[frozenset[str], frozenset[str]]]) -> frozenset[str]:
    """What is read where only an exception leads."""
    reached, pending = {0}, [0]
    while pending:
        for target in following[pending.pop()]:
            if target not in reached:
                reached.add(target)
                pending.append(target)
    return frozenset[str]().union(*(reads for place, (reads, _) in enumerate(uses) if place not in reached))
