"""JSON read as dataclasses: every key known, every value of its type, and an error that names the key path."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fx2onnx.base.errors import UserError

T = TypeVar("T")
_WORDS = {int: "a whole number", str: "a text", bool: "true or false", float: "a number", dict: "an object"}


class Misfit(ValueError):
    """Raised for JSON that does not fit, with the path of the key: ``graphs[0].kind is 3, not ...``."""


@contextlib.contextmanager
def metadata(key: str) -> Iterator[None]:
    """Around what reads the metadata ``key`` of a model. Raises UserError E303 where it is not as it was written."""
    try:
        yield
    except (ValueError, RecursionError) as cause:
        raise UserError(
            "E303", f"the model's metadata {key} is malformed", why=str(cause)[:200], next="export the model again"
        ) from cause


class Open:
    """A dataclass of this kind may have more keys in its JSON, which nobody reads."""


@dataclass(frozen=True, eq=False)
class Only:
    """A rule for a value beside its type, for ``Annotated[type, Only(...)]``: what is expected, in words and, as far as
    that has words for it, in JSON Schema."""

    what: str
    fits: Callable[[Any], bool]
    schema: Mapping[str, Any] = field(default_factory=dict)


def within(low: int, high: int) -> Only:
    """A whole number in that range."""
    schema = {"minimum": low, "maximum": high}
    return Only(f"a whole number from {low} to {high}", lambda value: low <= value <= high, schema)


def built(kind: type[T], value: Any, path: str = "") -> T:
    """``value``, as ``json.loads`` gives it, as the type ``kind``. Raises Misfit."""
    return _built(kind, value, path)  # type: ignore[no-any-return]


def _built(kind: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if hasattr(kind, "of_json"):  # which reads what is nested without end in its own way
        return kind.of_json(value, path)
    if dataclasses.is_dataclass(kind):
        return _built_dataclass(kind, _of_type(dict, value, path), path)
    if origin is Annotated:
        found = _built(args[0], value, path)
        broken = next((rule for rule in args[1:] if not rule.fits(value)), None)
        return found if broken is None else _fail(value, path, broken.what)
    if origin is Literal:
        return value if value in args else _fail(value, path, f"one of {', '.join(args)}")
    if origin in (tuple, list):
        items = _of_type(list, value, path)
        kinds = args if origin is tuple and args[-1] is not ... else args[:1] * len(items)
        if len(kinds) != len(items):
            _fail(value, path, f"a list of {len(kinds)}")
        return origin(
            _built(one, item, f"{path}[{place}]") for place, (one, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin in (Mapping, dict):
        items = _of_type(dict, value, path).items()
        return {_built(args[0], key, f"a key of {path}"): _built(args[1], item, f"{path}.{key}") for key, item in items}
    if args:  # a union
        plain = next((one for one in args if type(value) is one), None)
        return value if plain else _built(args[0], value, path)
    return value if kind is Any else _of_type(kind, value, path)


def _built_dataclass(kind: Any, stated: Mapping[str, Any], path: str) -> Any:
    hints, dot = _hints(kind), f"{path}." if path else ""
    if issubclass(kind, Open):
        stated = {key: value for key, value in stated.items() if key in hints}
    for key in stated:
        if key not in hints:
            raise Misfit(f"{dot}{key:.60} is not known; known are {', '.join(hints)}")
    for known in dataclasses.fields(kind):
        if known.name not in stated and known.default is known.default_factory:  # both are MISSING
            raise Misfit(f"{dot}{known.name} is missing")
    return kind(**{key: _built(hints[key], value, f"{dot}{key}") for key, value in stated.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _of_type(kind: Any, value: Any, path: str) -> Any:
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    return _fail(value, path, _WORDS.get(kind, "a list"))


def _fail(value: Any, path: str, what: str) -> Any:
    text = repr(value)
    raise Misfit(f"{path} is {text if len(text) < 60 else f'{text[:56]}...'}, not {what}")
