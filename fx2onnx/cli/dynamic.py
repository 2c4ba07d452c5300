"""The ``--dynamic`` option: ``default``, ``none`` or ``input_ids:0=batch,1=sequence;attention_mask:0=batch``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.signatures import signature_of
from fx2onnx.cli.feeds import inputs_like

if TYPE_CHECKING:
    from fx2onnx.sources import Source

_AXIS = re.compile(r"\s*(\d+)\s*=\s*([A-Za-z_]\w*)\s*")
_USAGE = "write NAME:AXIS=DIM,AXIS=DIM;NAME:AXIS=DIM, for example input_ids:0=batch,1=sequence"


def parse_dynamic(texts: list[str]) -> dict[str, dict[int, str]] | str:
    """``"default"``, ``"none"``, or dim names by argument name and axis.

    Raises:   UserError E001 where the text has neither form.
    """
    words = [text.strip() for text in texts]
    if len(words) == 1 and words[0] in ("default", "none"):
        return words[0]
    shapes: dict[str, dict[int, str]] = {}
    for entry in (entry for text in words for entry in text.split(";") if entry.strip()):
        name, colon, axes = entry.partition(":")
        matches = [_AXIS.fullmatch(axis) for axis in axes.split(",")]
        if not colon or not name.strip() or not all(matches):
            raise UserError("E001", f"cannot read --dynamic '{entry}'", next=_USAGE)
        named = shapes.setdefault(name.strip(), {})
        for axis, dim in ((int(match[1]), match[2]) for match in matches if match):
            if named.setdefault(axis, dim) != dim:
                raise UserError(
                    "E001", f"--dynamic gives axis {axis} of '{name.strip()}' two names", next="give it one"
                )
    if not shapes:
        raise UserError("E001", "--dynamic is empty", next=_USAGE)
    return shapes


def dynamic_shapes_of(source: Source, wanted: dict[str, dict[int, str]] | str) -> Any:
    """The ``dynamic_shapes`` argument of ``fx2onnx.export`` for ``source``; None where all sizes are fixed.

    Sizes of the source's own proposal (``"default"``) may turn out static; those that the user names may not.

    Raises:   UserError E105 for an argument or an axis that the sample call does not have.
    """
    if wanted == "none":
        return None
    if isinstance(wanted, str):
        from fx2onnx.capture.shapes.requested import Proposed

        if source.program is not None:
            from fx2onnx.exporting.exported_program import dynamic_shapes_of as of_program

            return of_program(source.program)
        if source.dynamic_shapes is None:
            return None
        return {
            name: {axis: Proposed(str(dim)) for axis, dim in axes.items()}
            for name, axes in source.dynamic_shapes.items()
        }
    samples = arguments_of(source)
    for name, axes in wanted.items():
        if name not in samples:
            what = f"--dynamic names '{name}', which is no input of {source.name}"
            raise UserError("E105", what, next=inputs_like(name, samples))
        rank = getattr(samples[name], "ndim", None)
        for axis in axes:
            if rank is not None and axis >= rank:
                raise UserError("E105", f"--dynamic names axis {axis} of '{name}', which has {rank} axes")
    return wanted


def arguments_of(source: Source) -> dict[str, Any]:
    """The arguments of the sample call by the names that ``forward`` gives them."""
    signature = signature_of(source.module.forward)
    if signature is None:
        return dict(source.kwargs)
    bound = signature.bind(*source.args, **source.kwargs)
    result: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            result.update({f"{name}_{index}": item for index, item in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            result.update(value)
        else:
            result[name] = value
    return result
