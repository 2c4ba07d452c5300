"""Options as fields of dataclasses: one line has an option's name, type, default, help and panel. The flags of the command line and
the tables of the documentation are made from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, TypeVar

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import OF_EXPORTERS, PRODUCER

Options = TypeVar("Options")

INPUTS, SAMPLING, SIZES, PRECISION, OUTPUT, CHECKS = (
    "Example inputs", "Generation", "Dynamic shapes", "Precision and quantization", "Output", "Checks",
)  # fmt: skip
PANELS = (INPUTS, SAMPLING, SIZES, PRECISION, OUTPUT, CHECKS)
"""Panels of the help, in the order in which they stand there."""
_METADATA_KEY = "fx2onnx.flag"
_KINDS: dict[str, Any] = {
    kind: eval(kind)
    for kind in ("bool", "int", "float", "str", "bool | None", "int | None", "float | None", "str | None")
}


class Flag(NamedTuple):
    """An option on the command line. Without ``names`` it is ``--field-name``."""

    help: str
    panel: str
    names: tuple[str, ...] = ()
    kind: Any = None
    """The type on the command line, where the field's own is wider."""
    metavar: str | None = None


def option(
    default: Any, help: str, *names: str, panel: str, kind: Any = None, repr: bool = True, metavar: str | None = None
) -> Any:
    """A field of a dataclass that is an option of commands, too. Without a default (``...``) it is what the others belong to."""
    flag = Flag(help, panel, names, kind, metavar)
    return field(default=MISSING if default is ... else default, repr=repr, metadata={_METADATA_KEY: flag})


def flag_of(option_field: Field[Any]) -> Flag | None:
    """The flag of a field; None where commands do not have it."""
    return option_field.metadata.get(_METADATA_KEY)


def kind_of(option_field: Field[Any], flag: Flag) -> Any:
    """The type on the command line, with None where nothing is the default."""
    kind = flag.kind or _KINDS[str(option_field.type)]
    return kind if isinstance(option_field.default, bool | int | float | str) else kind | None


def documented(options: type[Options]) -> type[Options]:
    """Add the help of each option to the docstring of its dataclass."""
    flags = [(item.name, flag_of(item)) for item in fields(options)]  # type: ignore[arg-type]
    lines = "\n".join(f"    {name}: {flag.help}" for name, flag in flags if flag is not None)
    options.__doc__ = f"{(options.__doc__ or '').rstrip()}\n\n{lines}\n    "
    return options


def metadata_of(given: Any, word: str, known: Sequence[str]) -> tuple[str, dict[str, str] | None]:
    """The word for notes on the origin of nodes, and the user's own entries as text, from a word, a mapping, or a list of both.

    Raises: UserError E001 for a word that is not ``known``, and for an entry that a file cannot hold.
    """
    entries: dict[str, str] = {}
    for each in given if isinstance(given, list | tuple) else (given,):
        if isinstance(each, Mapping):
            entries |= {key: _entry(key, value) for key, value in each.items()}
        else:
            word = each
    if word not in known:
        own = f"or an entry of your own: --metadata {word}=VALUE, metadata={{{word!r}: ...}}"
        steps = [f"one of {', '.join(known)}", own]
        raise UserError("E001", f"metadata={word!r:.40} is not known, and no KEY=VALUE", next=steps)
    return word, entries or None


def _entry(key: Any, value: Any) -> str:
    """The value of an own entry as text: JSON where it is none. Raises UserError E001."""
    if not isinstance(key, str) or not key or key.startswith(RESERVED):
        why = f"keys that begin with {' or '.join(RESERVED)} are those of exporters" if key else ""
        raise UserError("E001", f"metadata cannot have the key {key!r:.80}", why=why, next="give another name")
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False, ensure_ascii=False)
        (key + text).encode()
    except (TypeError, ValueError, RecursionError) as cause:
        steps = "give text, or numbers, lists and dicts, which become JSON"
        raise UserError("E001", f"metadata cannot hold the value of {key!r:.80}", why=str(cause), next=steps) from None
    return text


RESERVED = (f"{PRODUCER}.", OF_EXPORTERS)
"""The prefixes of the keys that exporters write into a model's metadata."""
