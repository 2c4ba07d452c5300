"""Inputs whose values are fixed to the sample's, since Python needs numbers of them."""

from __future__ import annotations

from collections.abc import Iterable

from fx2onnx.base.errors import UserError


class BakeAdvice(str):
    """What to do next of an error: bake the inputs ``names``."""

    names: tuple[str, ...]

    def __new__(cls, names: Iterable[str]) -> BakeAdvice:
        names = tuple(sorted(names))
        quoted = ", ".join(f'"{name}"' for name in names)
        advice = super().__new__(cls, f"bake=[{quoted}] to fix the sample's values in the file")
        advice.names = names
        return advice

    def __reduce__(self) -> tuple[object, ...]:
        return BakeAdvice, (self.names,)


def inputs_to_bake(error: BaseException) -> tuple[str, ...]:
    """The inputs that would have to be fixed for the run to go on; none where that does not help."""
    steps = error.next if isinstance(error, UserError) else ()
    return next((step.names for step in steps if isinstance(step, BakeAdvice)), ())
