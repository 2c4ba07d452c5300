"""The config files of a checkpoint, read and checked before transformers sees them.

A config is data from wherever the checkpoint comes from. Some of its keys make transformers (5.23) fetch a kernel, a config
or code, import a package or read another file; these are refused by name, at any depth. ``offline`` is the second
line: while a model is made, no request to the hub, no kernel from there, no more modules than a limit.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from torch.nn.modules.module import register_module_module_registration_hook

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import inside, read_object
from fx2onnx.sources.hf.sample_context import with_sub_configs
from fx2onnx.sources.hf.transformers_types import Config

CONFIG, GENERATION_CONFIG, ADAPTER_CONFIG = "config.json", "generation_config.json", "adapter_config.json"
_PLAIN = frozenset({"eager", "sdpa", "flex_attention", "paged|eager", "paged|sdpa", "grouped_mm", "batched_mm"})
"""Implementations of attention and experts that are part of transformers and PyTorch."""
_UNPACKED = frozenset({"fp8", "mxfp4"})
"""Quantizations that transformers can undo with PyTorch alone when it loads."""


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or (isinstance(value, str) and value in _PLAIN)


def _is_count(value: object) -> bool:
    """No name in it: sizes of a convolution's kernels."""
    return not value or type(value) in (int, float) or (isinstance(value, list) and all(map(_is_count, value)))


def _is_name(value: object) -> bool:
    return not isinstance(value, str) or not set(value) & set("/:\\")


def _has_no_checkpoint(value: object) -> bool:
    taken = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"}
    return not isinstance(value, dict) or not taken & set(value)


_KEYS: tuple[tuple[re.Pattern[str], Callable[[object], bool], str], ...] = tuple(
    (re.compile(pattern), may_pass, why)
    for pattern, may_pass, why in (
        (
            r"\w*(attn|attention|experts)_implementation(_internal)?",
            _is_plain,
            "transformers would load a kernel by it",
        ),
        (r"use_kernels|allow_all_kernels|kernel_config|kernels", _is_count, "transformers would load kernels by it"),
        (r"backbone", _is_name, "transformers would fetch it"),
        (r"architecture", lambda value: not isinstance(value, str) or ":" not in value, "timm would fetch it"),
        (r"model_args", _has_no_checkpoint, "timm would load a checkpoint by it"),
        (r"configuration_files", lambda value: not value, "transformers would read another file instead"),
        (r"custom_generate", lambda value: not value, "transformers would run code by it"),
        (r"compile_config", lambda value: not value, "transformers would run a compiler by it"),
        (r"cache_implementation", lambda value: value != "quantized", "transformers would import a package by it"),
    )
)
"""Keys of which some values are refused: their pattern, whether a value may pass, and why not."""

_COUNTS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"\w*?_?(layers?|blocks?|depths?|stages?)"), 10_000),
    (re.compile(r"\w*(num_labels|num_classes)"), 1_000_000),
)
"""Numbers by which configs and models make lists before anything else could notice how long these get."""


def read_config(folder: Path) -> dict[str, object]:
    """``config.json`` of ``folder``; the generation config beside it is checked, too.

    Raises:   UserError E302 (a file that cannot be read), E601 (what it says would fetch or run something).
    """
    path = inside(folder, CONFIG)
    stated = read_object(path)
    for key, kind in (("model_type", str), ("architectures", list)):
        if stated.get(key) is not None and not isinstance(stated[key], kind):
            raise UserError("E302", f"cannot read '{path}'", why=f"{key} is {stated[key]!r:.60}, no {kind.__name__}")
    check_config(stated, str(path))
    weights = stated.get("transformers_weights")
    if weights is not None and not (isinstance(weights, str) and Path(weights).name == weights):
        raise _refused(str(path), "transformers_weights", weights, "it is no file name")
    generation = inside(folder, GENERATION_CONFIG)
    if generation.exists():
        check_config(read_object(generation), str(generation))
    if inside(folder, ADAPTER_CONFIG).exists():
        raise UserError(
            "E601",
            f"the checkpoint '{folder}' has an adapter beside its weights ({ADAPTER_CONFIG})",
            why="its config can name packages to import",
            next="merge it into the weights, or move it away: model.merge_and_unload().save_pretrained(FOLDER)",
        )
    return stated


def check_config(stated: Mapping[str, object], where: str) -> None:
    """Raises UserError E601 for a key that would make transformers fetch, import or run something, E404 for a count."""
    for depth, name, key, value in _walk(stated):
        for pattern, may_pass, why in _KEYS:
            if pattern.fullmatch(key) and not may_pass(value):
                raise _refused(where, name, value, why)
        if key == "auto_map" and depth:
            raise _refused(where, name, value, "the checkpoint brings its own model code, which fx2onnx does not run")
        numbers = value if isinstance(value, list) else [value]
        for pattern, most in _COUNTS:
            if pattern.fullmatch(key) and any(isinstance(number, int | float) and number > most for number in numbers):
                raise UserError("E404", f"{where}: {name} is {value!r:.60}", why=f"the limit is {most}")


def _walk(stated: Mapping[str, object]) -> Iterator[tuple[int, str, str, object]]:
    """Depth, dotted name, key and value of every member of an object."""
    pending: list[tuple[int, str, Any]] = [(0, "", stated)]
    while pending:
        depth, prefix, item = pending.pop()
        is_object = isinstance(item, Mapping)
        for key, value in item.items() if is_object else enumerate(item):
            if is_object:
                yield depth, f"{prefix}{key}", str(key), value
            if isinstance(value, dict | list):
                pending.append((depth + 1, f"{prefix}{key}.", value))


def _refused(where: str, name: str, value: object, why: str) -> UserError:
    return UserError(
        "E601",
        f"{where}: {name} is {value!r:.100}, which fx2onnx does not follow",
        why=f"{why}; nothing is downloaded and no code but that of installed packages runs",
        next=f"leave out {name.rpartition('.')[2]}, or build the model in a factory of your own: "
        "fx2onnx export package.module:factory",
    )


def without_foreign_code(config: Config) -> Config:
    """``config`` without the places of its own code, by which auto classes of a part would ask whether to run it."""
    for part in with_sub_configs(config):
        vars(part).pop("auto_map", None)
    return config


def is_unpackable(config: Config) -> bool:
    """Return whether transformers can make the quantized weights plain with PyTorch alone."""
    said = getattr(config, "quantization_config", None)
    return isinstance(said, dict) and said.get("quant_method") in _UNPACKED


def unpack_quantized(config: Config, place: Path) -> None:
    """See to it that quantized weights are made plain on loading, by PyTorch alone. Changes ``config``.

    Raises:   UserError E601 for a quantization that needs a package or a kernel.
    """
    for part in with_sub_configs(config):
        said = getattr(part, "quantization_config", None)
        if said is None:
            continue
        method = said.get("quant_method") if isinstance(said, dict) else said
        if (
            not isinstance(method, str)
            or method not in _UNPACKED
            or said.get("load_in_4bit")
            or said.get("load_in_8bit")
        ):
            raise UserError(
                "E601",
                f"the weights of '{place}' are quantized: quantization_config of {CONFIG} says {method!r:.60}",
                why="transformers would import packages or load kernels by it",
                next=[
                    "save the checkpoint without quantization: model.dequantize()",
                    "--weights random leaves them out",
                ],
            )
        part.quantization_config = {**said, "dequantize": True}


MOST_MODULES = 400_000
"""The largest models that people export have some ten thousand."""
_LOCK = threading.Lock()
_INSIDE: list[tuple[bool, Callable[..., object] | None]] = []
"""The settings before the first of the calls that are now inside, one entry for each call."""


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Inside, huggingface_hub refuses requests and transformers finds no kernels."""
    from huggingface_hub import constants
    from transformers.integrations import hub_kernels

    with _LOCK:
        _INSIDE.append(_INSIDE[0] if _INSIDE else (constants.HF_HUB_OFFLINE, getattr(hub_kernels, "get_kernel", None)))
        constants.HF_HUB_OFFLINE, hub_kernels.get_kernel = True, _no_kernel
    try:
        yield
    finally:
        with _LOCK:
            before = _INSIDE.pop()
            if not _INSIDE:
                constants.HF_HUB_OFFLINE, hub_kernels.get_kernel = before
                if before[1] is None:  # transformers 4 has it where there is a package of kernels
                    del hub_kernels.get_kernel


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    """``offline``, and UserError E404 where building takes more than ``MOST_MODULES`` modules."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise UserError("E404", f"hf:{name} has more than {MOST_MODULES} modules", next="check its config.json")

    hook = register_module_module_registration_hook(counted)
    try:
        with offline():
            yield
    finally:
        hook.remove()


def _no_kernel(kernel_name: str, *_: object, **__: object) -> NoReturn:
    raise UserError("E601", f"the model wants the kernel '{kernel_name}'", why="fx2onnx downloads nothing")
