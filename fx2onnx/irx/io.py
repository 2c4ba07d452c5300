"""Writing a model: one file if small, one aligned ``.data`` beside it if large; all or nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.irx.data_file import write_data

SMALL_MODEL_BYTES = 16 * 1024 * 1024
"""Up to this much weight data a model is one file. Beyond, loaders gain by mapping the weights, and protobuf's three
copies of each weight would take longer than the rest of the export (its own limit is 2 GiB)."""

EXTERNAL_MIN_BYTES = 1024
"""Tensors below this stay in the model file, where shape inference can read them."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: paths and bytes."""

    path: str
    data_path: str | None
    model_bytes: int
    data_bytes: int


def check_writable(path: str | os.PathLike[str]) -> str:
    """The path as text, if a file can be made there. Raises UserError E301."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise UserError("E301", "the path of the model is empty", next="give a path such as model.onnx")
    folder = os.path.dirname(os.path.abspath(text))
    if os.path.isdir(text):
        raise UserError("E301", f"{text} is a folder", next="give a file name in it, such as model.onnx")
    if not os.path.isdir(folder):
        raise UserError("E301", f"the folder {folder} does not exist", next=f"make it: mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            "E301", f"{text} cannot be written", why=f"{folder} is read-only", next="choose a folder you may write to"
        )
    return text


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The protobuf message with every weight inside (a copy of them)."""
    require_data(model)
    return ir.to_proto(model)


def require_data(model: ir.Model) -> None:
    """Raises UserError E301 where a weight is a mere description without numbers."""
    for value in model.graph.initializers.values():
        if getattr(value.const_value, "lacks_data", False):
            raise UserError(
                "E301",
                f"the weight {value.name} has no data",
                why="the module is on the meta device",
                next="export with f=None for the structure only, or load the weights before exporting",
            )


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    durable: bool = False,
) -> Written:
    """Write ``model``. A crash, a full disk or an error leaves the old file or none, never a part.

    ``external_data`` forces (True) or forbids (False) the ``.data`` file; None decides by size. ``durable`` waits until
    the disk has it. Raises UserError E301.
    """
    target = check_writable(path)
    require_data(model)
    values = model.graph.initializers.values()
    weights = [(value, value.const_value.nbytes) for value in values if value.const_value is not None]
    outside = sum(length for _, length in weights) > SMALL_MODEL_BYTES if external_data is None else external_data
    large = [value for value, length in weights if length >= EXTERNAL_MIN_BYTES] if outside else []
    work = os.path.join(os.path.dirname(os.path.abspath(target)), f".fx2onnx-{secrets.token_hex(8)}")
    try:
        return _write(model, target, work, large, durable)
    except OSError as cause:
        raise UserError(
            "E301", f"{target} cannot be written", why=str(cause), next="free space or choose another folder"
        ) from cause
    finally:
        for unfinished in (work, f"{work}.data"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)


def _write(model: ir.Model, target: str, work: str, large: list[ir.Value], durable: bool) -> Written:
    """``work``: the path, in the target's folder, under which the model is written before it gets its name."""
    data_name = os.path.basename(target) + ".data"
    data_path = os.path.join(os.path.dirname(target), data_name) if large else None
    work_data = f"{work}.data"
    data_bytes = 0
    places: list[tuple[int, int]] = []
    if large:
        tensors = [value.const_value for value in large if value.const_value is not None]
        with record("write weights", bytes=sum(tensor.nbytes for tensor in tensors)):
            places = write_data(work_data, tensors)
        data_bytes = os.path.getsize(work_data)
    with record("serialise"), placed(large, data_name, places):
        content = ir.to_proto(model).SerializeToString(deterministic=True)
    with record("write model", bytes=len(content)), open(work, "xb") as stream:
        stream.write(content)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    if data_path is not None:
        if durable:
            _sync(work_data)
        # The old pair goes first: an old model must never point into new weights, not even for a moment. (Besides, ext4
        # flushes a file that is renamed over another one, which would cost more than writing it.)
        for old in (target, data_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)
        os.replace(work_data, data_path)
    os.replace(work, target)
    if durable:
        _sync(os.path.dirname(os.path.abspath(target)))
    return Written(target, data_path, len(content), data_bytes)


@contextlib.contextmanager
def placed(values: list[ir.Value], data_name: str, places: list[tuple[int, int]]) -> Iterator[None]:
    """The values refer to the data file for as long as the model is serialised."""
    originals = [value.const_value for value in values]
    try:
        for value, tensor, (offset, length) in zip(values, originals, places, strict=True):
            if tensor is not None:
                value.const_value = ir.ExternalTensor(
                    data_name, offset, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
                )
        yield
    finally:
        for value, original in zip(values, originals, strict=True):
            value.const_value = original


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
