"""Options as fields of dataclasses: one line has an option's name, type, default, help and panel. The flags of the command line and
the tables of the documentation are made from it.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, TypeVar

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
