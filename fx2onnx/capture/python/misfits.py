"""Errors of calls that ``forward`` does not take, or that have no tensor, with the step that fixes each."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence

from fx2onnx.base.errors import UserError

TO_TENSORS = "pass tensors: torch.from_numpy(array) for the NumPy array {}"
"""The step where an argument is a NumPy array, by its name."""

MODULE_MADE = "pass the module, not the function that makes it: export(make(), args, path)"
"""The step where a function that makes a module was given for the module."""


def no_tensor(constants: Mapping[str, str]) -> UserError:
    """The error of a call with NumPy arrays and no tensor; ``constants``: the class of each argument that holds numbers."""
    name = next(name for name, kind in constants.items() if kind == "ndarray")
    why = "a file has an input for each tensor, and arrays are constants in it"
    return UserError("E101", "no argument is a tensor", why=why, next=TO_TENSORS.format(name))


def no_call(
    signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object], cause: TypeError
) -> UserError:
    """The error of a call that ``signature`` does not allow, as ``cause`` says."""
    given = [*([f"{len(args)} positional"] if args else []), *(f"{name}=" for name in kwargs)]
    text = re.sub(r"\s+", " ", str(signature))
    unknown = next((name for name in kwargs if name not in signature.parameters), "")
    meant = difflib.get_close_matches(unknown, list(signature.parameters), 1)
    return UserError(
        "E101",
        f"the arguments do not fit forward{text if len(text) < 200 else text[:200] + '...'}",
        why=f"{cause}; given: {', '.join(given) or 'nothing'}",
        next=[
            *(f"did you mean {each}?" for each in meant),
            *_other_place(signature, args, kwargs),
            "pass the arguments that you would call the module with: args=(...), kwargs={...}",
        ],
    )


def _other_place(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """The step where what was given fits in another place: a dict as the one argument, or keywords of forward."""
    if not signature.parameters:
        return [MODULE_MADE]
    lacking = [each for name, each in signature.parameters.items() if each.default is each.empty and name not in kwargs]
    first = lacking[0].name if len(lacking) == 1 else ""
    if first and not args and kwargs and not kwargs.keys() & signature.parameters.keys():
        is_one = len(kwargs) == 1
        other = f"a dict that is {first} itself is args=({first},), a tuple with one element"
        return [f"forward calls it {first}: kwargs={{{first!r}: ...}}", f"or {other}"] if is_one else [other]
    keywords = [each.name for each in lacking if each.kind is each.KEYWORD_ONLY]
    return [f"kwargs={{{keywords[0]!r}: ...}}: forward takes it as a keyword only"] if keywords else []
