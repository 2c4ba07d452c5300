"""The ``--dynamic`` option: ``default``, ``none`` or ``input_ids:0=batch,1=sequence;attention_mask:0=batch``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.signatures import signature_of

if TYPE_CHECKING:
    from fx2onnx.sources import Source

_AXIS = re.compile(r"\s*(?:(?P<name>.*\S)\s*:)?\s*(?P<axis>\d+)\s*=\s*(?P<dim>[A-Za-z_]\w*)\s*", re.DOTALL)
_USAGE = "write NAME:AXIS=DIM,AXIS=DIM;NAME:AXIS=DIM, for example input_ids:0=batch,1=sequence"


def parse_dynamic(texts: Sequence[str]) -> dict[str, dict[int, str]] | str:
    """``"default"``, ``"none"``, or dim names by argument name and axis.

    Raises:   UserError E001 where the text has neither form.
    """
    words = [text.strip() for text in texts]
    if len(words) == 1 and words[0] in ("default", "none"):
        return words[0]
    shapes: dict[str, dict[int, str]] = {}
    for entry in (entry for text in words for entry in text.split(";") if entry.strip()):
        name = ""
        for part in entry.split(","):
            match = _AXIS.fullmatch(part)
            name = (match and match["name"]) or name
            if match is None or not name:
                raise UserError("E001", f"cannot read --dynamic '{entry}'", next=_USAGE)
            axis, dim = int(match["axis"]), match["dim"]
            if shapes.setdefault(name, {}).setdefault(axis, dim) != dim:
                raise UserError("E001", f"--dynamic gives axis {axis} of '{name}' two names", next="give it one")
    if not shapes:
        raise UserError("E001", "--dynamic is empty", next=_USAGE)
    return shapes


def places_of(texts: Sequence[str]) -> dict[str, str]:
    """The same for a file, which has no default: dim names by ``input:axis``. Raises UserError E001."""
    asked = parse_dynamic(texts) if texts else {}
    if isinstance(asked, str):
        if asked == "none":
            return {}
        raise UserError("E001", f"--dynamic {asked} is for a source, not for a file", next=_USAGE)
    return {f"{name}:{axis}": dim for name, axes in asked.items() for axis, dim in axes.items()}


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
            from fx2onnx.cli.feeds import inputs_like

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
