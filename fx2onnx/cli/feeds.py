"""Inputs on the command line: random arrays that respect dtype and shape, arrays of .npy files, and ``--dynamic``.

``--dynamic`` takes ``default``, ``none`` or ``input_ids:0=batch,1=sequence;attention_mask:0=batch``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError, no_such_file
from fx2onnx.base.signatures import signature_of
from fx2onnx.judge.feeds import SWITCHES, InputType, dim_names
from fx2onnx.judge.feeds import make_feeds as random_feeds

if TYPE_CHECKING:
    from fx2onnx.sources import Source


_NUMBERS = (
    *("float16", "bfloat16", "bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
# Type strings as onnxruntime and the runner give them, and the NumPy dtype of each.
DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {f"tensor({name})": name for name in _NUMBERS}


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a dict. Raises UserError E001 for another form or a name given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UserError("E001", f"cannot read {flag} '{text}'", next=f"write {flag} NAME=VALUE")
        if name in pairs:
            raise UserError("E001", f"{flag} gives '{name}' twice")
        pairs[name] = value
    return pairs


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """``--dim NAME=N`` options. Raises UserError E001 where N is no size."""
    sizes: dict[str, int] = {}
    for name, value in parse_pairs(texts, "--dim").items():
        if not value.isdecimal():
            raise UserError("E001", f"--dim {name}={value}: the size must be a whole number, 0 or more")
        sizes[name] = int(value)
    return sizes


def make_feeds(
    inputs: Sequence[Any], given: Mapping[str, str], dims: Mapping[str, int], seed: int, conditions: str = ""
) -> dict[str, np.ndarray[Any, Any]]:
    """One array per input: random, or read where ``given[name]`` is a path. Unnamed dynamic dims are 1, or the least that
    ``conditions``, the model's metadata on sizes, allow.

    ``inputs`` are the session's descriptions (name, type, shape). Sizes of dims that a file fixes hold for the others.

    Raises:   UserError E401 (unknown name, wrong dtype or shape), E302 (unreadable file), E001 (unknown dim).
    """
    by_name = {item.name: item for item in inputs}
    for name in given:
        if name not in by_name:
            raise UserError("E401", f"the model has no input '{name}'", next=inputs_like(name, by_name))
    sizes = dict(dims)
    check_dims([dim for item in inputs for dim in item.shape], dims)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in given.items():
        if value != "random":
            feeds[name] = _read(by_name[name], Path(value), sizes)
    drawn = [InputType(item.name, _dtype(item), tuple(item.shape)) for item in inputs if item.name not in feeds]
    unnamed = {name: 1 for each in drawn for name in dim_names(each)}
    made = random_feeds(drawn, _allowed(unnamed | sizes, sizes, conditions), SWITCHES, seed)
    if made is None:
        what = f"no random inputs can be made for {', '.join(repr(each.name) for each in drawn)}"
        raise UserError(
            "E401",
            what,
            why="one is too large, or no tensor of a known rank",
            next="give arrays: --input NAME=FILE.npy",
        )
    feeds |= made
    return {item.name: feeds[item.name] for item in inputs}


def _allowed(wanted: dict[str, int], fixed: Mapping[str, int], conditions: str) -> Mapping[str, int]:
    """Sizes near ``wanted`` that the conditions allow; ``wanted`` itself where that would change one of ``fixed``."""
    if not conditions:
        return wanted
    from fx2onnx.sizes.stated import read, sizes_near

    allowed = sizes_near(wanted, read(conditions), unlike={}) or wanted
    return wanted if any(allowed.get(name, size) != size for name, size in fixed.items()) else allowed


def inputs_like(name: str, inputs: Mapping[str, Any]) -> str:
    """The next step for a name that is none of ``inputs``: the closest of them, or all."""
    close = difflib.get_close_matches(name, inputs, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"inputs: {', '.join(inputs)}"


def check_dims(of_inputs: Iterable[object], dims: Mapping[str, int]) -> None:
    """Raises UserError E001 for a name of ``dims`` that is none of the dims of inputs."""
    known = list(dict.fromkeys(dim for dim in of_inputs if isinstance(dim, str)))
    for name in dims:
        if name not in known:
            raise UserError(
                "E001",
                f"no input has a dynamic dim '{name}'",
                next=f"dims: {', '.join(known)}" if known else "all sizes are fixed",
            )


def _dtype(item: Any) -> np.dtype[Any]:
    name = DTYPES.get(item.type)
    if name is None:
        raise UserError(
            "E401",
            f"no random values for the input '{item.name}' of type {item.type}",
            next="run the model from Python",
        )
    return np.dtype(name)


def with_inputs(source: Source, texts: Sequence[str], model: Path) -> Source:
    """``source`` with arrays of files in the place of its example inputs: ``NAME=FILE.npy`` for each. They have to fit ``model``, too.

    Raises:   UserError E401 (unknown name, wrong dtype or number of axes), E302 (unreadable file), E001.
    """
    if not texts:
        return source
    from fx2onnx.capture.python.inputs import bind, normalise_args
    from fx2onnx.semantics.check import open_file
    from fx2onnx.verify.arrays import to_tensor

    arguments = bind(source.module.forward, *normalise_args(source.module, source.args, source.kwargs), None)
    tensors = {leaf.name: leaf.tensor for leaf in arguments.leaves}
    kinds = {name: kind for kind, name in DTYPES.items()}
    shapes = {
        each.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in each.type.tensor_type.shape.dim
        ]
        for each in open_file(model).proto.graph.input
    }
    sizes: dict[str, int] = {}
    for name, path in parse_pairs(texts, "--input").items():
        if name not in tensors:
            raise UserError("E401", f"the module has no input '{name}'", next=inputs_like(name, tensors))
        old = tensors[name]
        kind = kinds.get(str(old.dtype).removeprefix("torch."), "")
        item = SimpleNamespace(name=name, type=kind, shape=shapes.get(name, [None] * old.dim()))
        tensors[name] = to_tensor(_read(item, Path(path), sizes))
    args, kwargs = arguments.rebuilt(list(tensors.values()))
    return replace(source, args=tuple(args), kwargs=dict(kwargs))


def _read(item: Any, path: Path, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The array of a .npy file, checked against the input; names its dynamic dims in ``sizes``."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        if re.fullmatch(r"[\[\](),.\deE+ -]+", str(path)):
            what, made = f"the value of --input {item.name} is no file of an array", str(path).strip("[]() ")
            step = f"numpy.save('{item.name}.npy', numpy.array([[{made}]], '{_dtype(item)}')), then --input {item.name}={item.name}.npy"
            raise UserError("E302", what, why=f"it is {path}", next=step) from error
        raise no_such_file(path) from error
    except (OSError, ValueError, EOFError) as error:
        steps = [f"numpy.save('{path}', array.astype('{_dtype(item)}'))"] if "Object arrays" in str(error) else []
        what = f"cannot read '{path}' as a .npy array"
        raise UserError("E302", what, why=str(error).splitlines()[0], next=steps) from error
    if not isinstance(array, np.ndarray):
        with array as arrays:
            if len(arrays.files) != 1:
                named = ", ".join(arrays.files) or "none"
                raise UserError("E302", f"'{path}' holds several arrays: {named}", next="save one with numpy.save")
            array = arrays[arrays.files[0]]
    expected = _dtype(item)
    if array.dtype != expected:
        if array.dtype == np.dtype("V2") and expected.itemsize == 2:  # how numpy.save spells bfloat16
            array = array.view(expected)
        else:
            raise UserError(
                "E401",
                f"the input '{item.name}' is {expected}, but '{path}' holds {array.dtype}",
                next=f"numpy.save('{path}', array.astype('{expected}'))",
            )
    if getattr(item, "dims", item.shape) is None:
        return array  # the model does not say how many axes it takes
    fits = array.ndim == len(item.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(item.shape, array.shape, strict=False)
    )
    if not fits:
        wanted = ", ".join("?" if dim is None else str(dim) for dim in item.shape)
        raise UserError("E401", f"the input '{item.name}' is [{wanted}], but '{path}' holds {list(array.shape)}")
    for dim, size in zip(item.shape, array.shape, strict=True):
        if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
            raise UserError("E401", f"the dim '{dim}' is {sizes[dim]}, but '{path}' makes it {size}")
    return array


_AXIS = re.compile(
    r"\s*(?:(?P<name>.*\S)\s*:)?\s*(?P<axis>-?\d+)\s*=\s*(?P<dim>(?:\d+ *\* *)?[A-Za-z_]\w*)\s*", re.DOTALL
)
_USAGE = "write NAME:AXIS=DIM,AXIS=DIM;NAME:AXIS=DIM, for example input_ids:0=batch,1=sequence"
_WORDS = "or one word: default (the sizes that a source proposes), or none"


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
                python = '"auto" is a value of dynamic_shapes in Python only' if entry.strip() == "auto" else ""
                raise UserError("E001", f"cannot read --dynamic '{entry}'", why=python, next=[_USAGE, _WORDS])
            axis, dim = int(match["axis"]), match["dim"]
            if shapes.setdefault(name, {}).setdefault(axis, dim) != dim:
                raise UserError("E001", f"--dynamic gives axis {axis} of '{name}' two names", next="give it one")
    if not shapes:
        raise UserError("E001", "--dynamic is empty", next=[_USAGE, _WORDS])
    return shapes


def places_of(texts: Sequence[str]) -> dict[str, str]:
    """The same for a file, which has no default: dim names by ``input:axis``. Raises UserError E001."""
    asked = parse_dynamic(texts) if texts else {}
    if isinstance(asked, str):
        if asked == "none":
            return {}
        raise UserError("E001", f"--dynamic {asked} is for a source, not for a file", next=_USAGE)
    if wrong := next((dim for axes in asked.values() for dim in axes.values() if "*" in dim), None):
        raise UserError("E001", f"--dynamic names '{wrong}', and a file has names of sizes only", next=_USAGE)
    return {f"{name}:{axis}": dim for name, axes in asked.items() for axis, dim in axes.items()}


def dynamic_shapes_of(source: Source, wanted: dict[str, dict[int, str]] | str) -> Any:
    """The ``dynamic_shapes`` argument of ``fx2onnx.export`` for ``source``; None where all sizes are fixed.

    Names of the source's own proposal (``"default"``) may turn out static; its expressions, and what the user names, may not.

    Raises:   UserError E105 for an argument or an axis that the example call does not have.
    """
    if wanted == "none":
        return None
    if isinstance(wanted, str):
        from fx2onnx.capture.shapes.dynamic import Proposed

        if source.program is not None:
            from fx2onnx.exporting.exported_program import dynamic_shapes_of as of_program

            return of_program(source.program)
        if source.dynamic_shapes is None:
            return None
        return {
            name: {axis: Proposed(dim) if isinstance(dim, str) else dim for axis, dim in axes.items()}
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
            if rank is not None and not -rank <= axis < rank:
                what = f"--dynamic names axis {axis} of '{name}', which has {rank} axes"
                raise UserError("E105", what, next=f"axes count from 0: the last one is {rank - 1}, or -1")
    return wanted


def arguments_of(source: Source) -> dict[str, Any]:
    """The arguments of the example call by the names that ``forward`` gives them."""
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
