"""``package.module:factory``: a function of the user's own."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable

import torch

from fx2onnx.base.errors import UserError, no_such_file
from fx2onnx.base.packages import GPU_PACKAGES
from fx2onnx.base.signatures import signature_of
from fx2onnx.base.source import PACKAGE_FOLDER, SourceLocation
from fx2onnx.sources.foreign_errors import summary
from fx2onnx.sources.registry import fail_unknown, prefixes
from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.source import Options, Source

_RETURNS = "a factory returns a module, (module, args), (module, args, kwargs) or a fx2onnx.sources.Source"


def names() -> list[str]:
    """Nothing: the functions of all importable modules cannot be listed."""
    return []


def build(name: str, options: Options) -> Source:
    """The source that the factory returns, its module in eval mode (a ``Source`` is taken as it is).

    The working directory is importable. ``?key=value`` pairs, and ``--batch``, ``--seq``, ``--image-size`` where
    given, become keyword arguments of the factory; PyTorch's random numbers are seeded around the call.

    Raises:   UserError E601 (cannot be imported, raised, returned something else), E001 (unknown keyword).
    """
    module_name, _, path = name.partition(":")
    factory = _find(module_name, path)
    if isinstance(factory, torch.nn.Module):
        raise UserError(
            "E601",
            f"{name} is a module, and a source is a function",
            why=_RETURNS,
            next=f"write a function that returns it with its example inputs: def make(): return {path}, (example_input,)",
        )
    keywords = _keywords(factory, name, options)
    try:
        with seeded(options.seed):
            result = factory(**keywords)
    except UserError:
        raise
    except Exception as error:  # the factory is the user's code
        raise UserError(
            "E601",
            f"the factory {name} raised {type(error).__name__}",
            where=_deepest_user_frame(error),
            why=summary(error),
            next="call it in Python on its own; FX2ONNX_TRACEBACK=1 shows the whole traceback",
        ) from error
    return _as_source(name, path, result)


def _find(module_name: str, path: str) -> Callable[..., object]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module_name.endswith(".py"):
        module_name = _importable(module_name)
    try:
        place: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        package = missing.split(".")[0]
        if module_name == missing or module_name.startswith(missing + "."):
            hint = "run fx2onnx where the module can be imported"
            fail_unknown("module or source kind", module_name, prefixes(), hint=hint, rest=f":{path}")
        raise UserError(
            "E602",
            f"importing {module_name} needs {missing}, which is not installed",
            next=[
                f"pip install {package}",
                *[f"or --stand-ins {package}: docs/gpu_kernels.md"] * (package in GPU_PACKAGES),
            ],
        ) from error
    except Exception as error:  # so is its module
        raise UserError(
            "E601",
            f"importing {module_name} raised {type(error).__name__}",
            where=_deepest_user_frame(error),
            why=summary(error),
            next=f"python -c 'import {module_name}' raises it, too: fix the import",
        ) from error
    for part in path.split("."):
        if not hasattr(place, part):
            public = [key for key, value in vars(place).items() if callable(value) and not key.startswith("_")]
            fail_unknown(f"function of {module_name}", path, public)
        place = getattr(place, part)
    if not callable(place):
        raise UserError(
            "E601",
            f"{module_name}:{path} is not a function",
            why=f"it is an instance of {type(place).__name__}",
            next=_RETURNS,
        )
    return place


def _importable(path: str) -> str:
    """The name under which the file is imported, from its own folder. Raises UserError E601, E302."""
    file = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(file):
        raise no_such_file(path)
    folder, name = os.path.dirname(file), os.path.basename(file).removesuffix(".py")
    loaded = sys.modules.get(name)
    if not name.isidentifier() or (loaded is not None and os.path.abspath(loaded.__file__ or "") != file):
        why = f"a module of the name {name} is loaded already" if loaded else f"{name} is no name of a module"
        raise UserError("E601", f"cannot import '{path}'", why=why, next="give the file another name")
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    return name


def _keywords(factory: Callable[..., object], name: str, options: Options) -> dict[str, object]:
    keywords = {**options.keywords, **options.sizes()}
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return keywords
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in keywords:
        if key not in accepted:
            raise UserError(
                "E001", f"{name} does not take {key}", next=f"it takes {', '.join(accepted) or 'no argument'}"
            )
    lacking = [p.name for p in parameters if p.name in accepted and p.default is p.empty and p.name not in keywords]
    if lacking:
        step = f"'{name}?{'&'.join(f'{each}=VALUE' for each in lacking)}', or give each a default"
        raise UserError("E601", f"{name} needs {', '.join(lacking)}", next=step)
    return keywords


def _as_source(name: str, path: str, result: object) -> Source:
    if isinstance(result, Source):
        return result
    parts = result if isinstance(result, tuple) else (result,)
    if isinstance(parts[0] if parts else None, type):
        kind = parts[0].__name__
        raise UserError("E601", f"{name} returned the class {kind}", next=f"return an instance of it: {kind}(...)")
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], torch.nn.Module):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UserError(
            "E601",
            f"{name} returned ({kinds})" if isinstance(result, tuple) else f"{name} returned {kinds}",
            next=_RETURNS,
        )
    modes = {part: part.training for part in parts[0].modules()}
    module = parts[0].eval()
    sample: object = parts[1] if len(parts) > 1 else ()
    kwargs: dict[str, object] = dict(parts[2]) if len(parts) > 2 else {}
    args: tuple[object, ...] = tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)
    if isinstance(sample, dict):
        args, kwargs = (), {**sample, **kwargs}
    _check_call(name, module, args, kwargs)
    return Source(path.rsplit(".", 1)[-1], module, args, kwargs, origin=f"factory {name}", modes=modes)


def _check_call(name: str, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Sample inputs must bind to forward; a bare module has none, and a scripted one no signature."""
    signature = signature_of(module.forward)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UserError(
            "E601",
            f"the example inputs of {name} do not fit {type(module).__name__}.forward",
            why=str(error),
            next="return (module, args) or (module, args, kwargs) with example inputs",
        ) from error


def _deepest_user_frame(error: BaseException) -> SourceLocation | None:
    """The last frame of the traceback that is neither an installed package nor fx2onnx nor the import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith((PACKAGE_FOLDER + os.sep, "<frozen", os.path.dirname(os.__file__) + os.sep))
    ]
    if not frames:
        return None
    return SourceLocation(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)
