"""Valid examples made wrong: by their structure and by their bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

STRANGE = "strange_module"
"""In names of what must never be imported, run or opened."""
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 10**400, 1e30, -0.0, float("nan"), float("inf"), "", "many", "\0",
    "a\nb", "\ud800", "\u202e", "x" * 300, "x" * 70_000, [], {}, [[]], [None], {"": None}, [1, "a"], "../secret", "/etc/passwd", "..",
    "~", "~root", "file:///etc/passwd", "owner/" + STRANGE, "owner/" + STRANGE + "--code.Model", STRANGE + ":make",
    "hf-hub:owner/" + STRANGE, "local-dir:/etc", f"__import__('{STRANGE}')", "link", "os:system", {"": "owner/" + STRANGE},
    {"quant_method": "eetq"}, {"__float__": "NaN"}, {"AutoModel": "owner/repo--" + STRANGE + ".Model"}, ["../secret"],
]  # fmt: skip


def structurally(value: Any, rng: random.Random, keys: list[str]) -> Any:
    """``value`` with up to four members replaced, left out, added, renamed or wrapped. ``keys`` are names that mean something."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        value = _edited(value, rng, keys)
    return value


def _edited(value: Any, rng: random.Random, keys: list[str]) -> Any:
    if rng.random() < 0.02:
        return rng.choice(HOSTILE)
    places = [item for item in _containers(value) if item] or [value]
    place = rng.choice(places)
    if isinstance(place, dict):
        name = rng.choice([*place, *keys[:3]]) if place else rng.choice(keys)
        edit = rng.randrange(5)
        if edit == 0:
            place.pop(name, None)
        elif edit == 1:
            place[rng.choice(keys)] = _any(rng)
        elif edit == 2 and name in place:
            place[rng.choice([*keys, _text(rng)])] = place.pop(name)
        else:
            place[name] = _any(rng)
    elif isinstance(place, list):
        place.insert(rng.randint(0, len(place)), _any(rng))
    return value


def _containers(value: Any) -> list[Any]:
    found, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict | list):
            found.append(item)
            pending += item.values() if isinstance(item, dict) else item
    return found


def _any(rng: random.Random) -> Any:
    chosen = rng.randrange(8)
    if chosen == 0:
        return rng.randint(-(2 ** rng.randrange(70)), 2 ** rng.randrange(70))
    if chosen == 1:
        return _text(rng)
    return copy.deepcopy(rng.choice(HOSTILE))


def _text(rng: random.Random) -> str:
    return "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0x11000)])) for _ in range(rng.randrange(12)))


def as_json(value: Any, rng: random.Random) -> bytes:
    """``value`` as a file; now and then nested beyond measure, or damaged."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.9).encode(errors="surrogatepass")
    fate = rng.random()
    if fate < 0.02:
        depth = rng.choice([60, 70, 900, 20_000])
        return b'{"a":' * depth + b"1" + b"}" * depth
    return bytewise(text, rng) if fate < 0.3 else text


def bytewise(data: bytes, rng: random.Random) -> bytes:
    """``data`` with some bytes changed, cut off, repeated or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        edit = rng.randrange(5)
        if edit == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif edit == 1:
            del changed[at : at + rng.randint(1, 20)]
        elif edit == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        elif edit == 3:
            start = rng.randint(0, len(changed))
            changed[at:at] = changed[start : start + 16]
        else:
            changed[at:at] = rng.choice([b"{", b"}", b"[", b'"', b"\\u", b"\xff", b"\0", b"1e999", b"NaN", b","])
    return bytes(changed)
