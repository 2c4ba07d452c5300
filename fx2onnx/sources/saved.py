"""``file:PATH``: what torch.export.save (``.pt2``) or torch.jit.save (TorchScript) wrote. No pickle in it is loaded."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.signatures import signature_of
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.source import Options, Source

_OBJECTS = re.compile(r".*/constants/(custom_obj|opaque)_")
"""Members of a ``.pt2`` file that torch.export.load unpickles."""
_TENSOR = re.compile(r"([a-z]\w*)?\s*([\[(].*[\])])?")
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def names() -> list[str]:
    """Nothing: files are not listed."""
    return []


def build(name: str, options: Options) -> Source:
    """The module in the file. A program brings its example inputs and its dynamic sizes along; inputs of TorchScript are made from
    ``?NAME=SHAPE``: ``x=2,3,224,224`` or ``ids=int64[2,16]``.

    Raises:   UserError E302 (no such file, damaged, something else), E601 (no example inputs), E001 (unknown input).
    """
    path = Path(name).expanduser()
    members = _members(path)
    if any(member.endswith("constants.pkl") for member in members):
        return _scripted(path, options)
    if any(member.endswith(("models/model.json", "serialized_exported_program.json")) for member in members):
        if options.keywords:
            what = f"{path.name} brings its example inputs along and takes no {next(iter(options.keywords))}"
            raise UserError("E001", what, next="leave out what follows the ?")
        if any(_OBJECTS.match(member) for member in members):
            raise UserError(
                "E302",
                f"'{path}' holds pickled objects, which are code",
                next="load it in Python, if you trust it, and call fx2onnx.export(program)",
            )
        return _program(path)
    if any(member.endswith("data.pkl") for member in members):
        raise UserError(
            "E302",
            f"'{path}' is what torch.save wrote: weights or a pickled module, no program",
            next="give a function that makes the module, package.module:factory, and --weights for a state dict",
        )
    raise _unreadable(path, "it is a zip archive, but neither a program of torch.export nor TorchScript")


def _members(path: Path) -> list[str]:
    if not os.path.isfile(path):
        raise UserError("E302", f"there is no file '{path}'", next="give the path of a .pt2 or TorchScript file")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise _unreadable(path, summary(error)) from error


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        "E302",
        f"cannot read '{path}'",
        why=why,
        next="write it again: torch.export.save(program, PATH), or torch.jit.save(scripted, PATH)",
    )


@contextlib.contextmanager
def _read(path: Path) -> Iterator[None]:
    """Read without unpickling, and without torch's log of what fails. Raises UserError E302."""
    loggers = [
        logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch.export")
    ]
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    for logger in loggers:
        logger.addFilter(_says_nothing)
    try:
        yield
    except Exception as error:  # torch's readers raise whatever a damaged part leads to
        raise _unreadable(path, summary(error)) from error
    finally:
        for logger in loggers:
            logger.removeFilter(_says_nothing)
        os.environ.pop(_WEIGHTS_ONLY)
        os.environ.update({} if before is None else {_WEIGHTS_ONLY: before})


def _says_nothing(record: logging.LogRecord) -> bool:
    return False


def _program(path: Path) -> Source:
    with _read(path):
        program = torch.export.load(path)
        module = program.module()
    if program.example_inputs is None:
        raise UserError(
            "E601",
            f"'{path}' has no example inputs",
            next="load it in Python: fx2onnx.export(torch.export.load(PATH), args, f)",
        )
    args, kwargs = program.example_inputs
    return Source(path.stem, module, tuple(args), dict(kwargs), origin=f"program of {path.name}", program=program)


def _scripted(path: Path, options: Options) -> Source:
    with _read(path):
        module = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    taken = signature_of(module.forward)
    if taken is None:
        raise _unreadable(path, "its forward has no schema")
    unknown = next((key for key in options.keywords if key not in taken.parameters), None)
    if unknown is not None:
        what = f"{path.name} has no input {unknown}"
        raise UserError("E001", what, next=f"its inputs are {', '.join(taken.parameters) or 'none'}")
    missing = [
        name for name, each in taken.parameters.items() if each.default is each.empty and name not in options.keywords
    ]
    if missing:
        shapes = "&".join(f"{name}=1,3,224,224" for name in missing)
        raise UserError(
            "E601",
            f"'{path}' does not say the shape of {', '.join(missing)}",
            why="TorchScript keeps no example inputs",
            next=f"give each one: '{path}?{shapes}', or NAME=int64[1,16] for another dtype than float32",
        )
    with seeded(options.seed):
        kwargs = {
            name: _value(name, text, taken.parameters[name].annotation) for name, text in options.keywords.items()
        }
    return Source(
        path.stem, module, (), _in_order(kwargs, list(taken.parameters)), origin=f"TorchScript of {path.name}"
    )


def _in_order(kwargs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def _value(name: str, given: object, kind: str) -> Any:
    """A tensor of the given shape, or the value itself where no tensor is taken. Raises UserError E001."""
    if "Tensor" not in kind:
        return given
    word: str = "float32"
    shape: Any = given
    if isinstance(given, str):
        match = _TENSOR.fullmatch(given.strip())
        word = match[1] or word if match else ""
        text = (match[2] or "[]").strip("[]()") if match else ""
        shape = [int(size) if size.strip().isdigit() else -1 for size in text.split(",") if size.strip()]
    sizes = list(shape) if isinstance(shape, list | tuple) else [shape]
    dtype = getattr(torch, word, None)
    if not isinstance(dtype, torch.dtype) or not all(type(size) is int and size >= 0 for size in sizes):
        what = f"cannot read the shape of {name}, '{given}'"
        raise UserError("E001", what, next=f"write {name}=2,3 or {name}=int64[2,3]")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes, dtype=dtype)
    return torch.randint(0, 2, sizes).to(dtype)
