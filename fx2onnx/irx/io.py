"""Writing a model: one file if small, one aligned ``.data`` beside it if large; all or nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import record
from fx2onnx.base.targets import check_target
from fx2onnx.files.digest import BlockDigests
from fx2onnx.files.staging import cannot_write, open_to_write, staged_files
from fx2onnx.irx.data_file import write_data
from fx2onnx.irx.model_files import Staged, commit, data_name

SMALL_MODEL_BYTES = 16 * 1024 * 1024
"""The most weight data of a model in one file. Beyond, loaders gain by mapping the weights, and protobuf's three copies
of each weight would take longer than the rest of the export (its own limit is 2 GiB)."""

EXTERNAL_MIN_BYTES = 1024
"""Tensors below this stay in the model file, where shape inference can read them."""

SIZES_BYTES = 64
"""Tensors up to here may be sizes, axes or factors, integers up to ``EXTERNAL_MIN_BYTES``: onnxruntime opens no file that has them outside."""


PROTOBUF_BYTES = 2**31 - 1
"""No protobuf message is longer. Only weights can make a model so long."""


Finish: TypeAlias = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing: paths and bytes."""

    path: str
    data_path: str | None
    model_bytes: int
    data_bytes: int


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The protobuf message with every weight inside (a copy of them). Raises UserError E301."""
    require_data(model)
    require_fitting(model)
    return message_of(model)


def message_of(model: ir.Model) -> onnx.ModelProto:
    """onnx_ir's message. Raises what the making of a weight raises, where that is an error of ours."""
    try:
        return ir.to_proto(model)
    except ir.serde.SerdeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Fx2OnnxError | UnicodeEncodeError):
            cause = cause.__cause__
        if cause is None:
            raise
        if isinstance(cause, UnicodeEncodeError):
            raise UserError(
                "E301",
                f"a name in the model is no text that a file can hold: {cause.object!a}",
                why="UTF-8 has no halves of characters",
                next="rename what is called so in the module",
            ) from None
        raise cause from None


def write_into(model: ir.Model, file: BinaryIO) -> int:
    """Write the model, weights inside, into an open binary file: so many bytes. Raises UserError E301."""
    content = to_proto(model).SerializeToString()
    left = memoryview(content)
    try:
        while left:
            count = file.write(left)
            left = left[len(left) if count is None else count :]
    except (OSError, ValueError) as cause:  # a file that is closed, or open to read
        name = type(file).__name__
        raise UserError("E301", f"cannot write into the open {name}", why=str(cause)) from cause
    return len(content)


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


def require_fitting(model: ir.Model, outside: Iterable[ir.Value] = ()) -> None:
    """Raises UserError E301 where the weights, less those ``outside`` and in other files, are too much for one message."""
    beside = set(outside)
    inside = [value.const_value for value in model.graph.initializers.values() if value not in beside]
    total_bytes = sum(
        tensor.nbytes for tensor in inside if tensor is not None and not isinstance(tensor, ir.ExternalTensor)
    )
    if total_bytes > PROTOBUF_BYTES:
        raise UserError(
            "E301",
            f"{total_bytes / 1e9:.1f} GB of weights do not fit into one file",
            why="a protobuf message holds less than 2 GiB",
            next="write them beside it: result.save(path, external_data=True)",
        )


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    durable: bool = False,
    min_bytes: int = EXTERNAL_MIN_BYTES,
    finish: Finish | None = None,
) -> Written:
    """Write ``model``. A crash, a full disk or an error leaves the old model or none, never a part (``model_files``).

    ``external_data`` forces (True) or forbids (False) the ``.data`` file; None decides by size. Weights below
    ``min_bytes`` stay in the model. ``durable`` waits until the disk has it. ``finish`` adds to the message
    what onnx_ir has no words for. Raises UserError E301.
    """
    target = check_target(path, is_trying=False)
    require_data(model)
    values = model.graph.initializers.values()
    weights = [(value, value.const_value.nbytes) for value in values if value.const_value is not None]
    outside = sum(length for _, length in weights) > SMALL_MODEL_BYTES if external_data is None else external_data
    large = [value for value, length in weights if length >= max(min_bytes, _least_outside(value))] if outside else []
    require_fitting(model, large)
    try:
        with staged_files(os.path.dirname(os.path.abspath(target)), 2 if large else 1) as stages:
            return _write(model, target, stages, large, durable, finish)
    except OSError as cause:
        raise cannot_write(target, cause) from cause


def _least_outside(value: ir.Value) -> int:
    dtype = value.const_value.dtype if value.const_value is not None else None
    return EXTERNAL_MIN_BYTES if dtype == ir.DataType.INT64 else SIZES_BYTES + 1


def _write(
    model: ir.Model, target: str, stages: list[str], large: list[ir.Value], durable: bool, finish: Finish | None
) -> Written:
    """``stages``: files in the target's folder that are written before they get their names: graph, weights."""
    files = Staged(stages[0])
    data_bytes = 0
    places: list[tuple[int, int]] = []
    if large:
        tensors = [value.const_value for value in large if value.const_value is not None]
        digests = BlockDigests()
        data = stages[1]
        with record("write weights", bytes=sum(tensor.nbytes for tensor in tensors)):
            places = write_data(data, tensors, digests)
        data_bytes = os.path.getsize(data)
        files = Staged(files.graph, data, data_name(target, digests.hexdigest()))
    with record("serialize"), placed(large, files.data_name or "", places):
        proto = message_of(model)
        if finish is not None:
            finish(proto)
        content = proto.SerializeToString(deterministic=True)
    with record("write model", bytes=len(content)):
        write_bytes(files.graph, content)
    commit(files, target, durable=durable)
    data_path = os.path.join(os.path.dirname(target), files.data_name) if files.data_name else None
    return Written(target, data_path, len(content), data_bytes)


def write_bytes(path: str, content: bytes) -> None:
    """Into a new file, or an empty one."""
    with open_to_write(path) as stream:
        left = memoryview(content)
        while left:
            left = left[stream.write(left) :]


@contextlib.contextmanager
def holding(values: Sequence[ir.Value], tensors: Iterable[ir.TensorProtocol | None]) -> Iterator[None]:
    """The values have other tensors for as long as the model is serialized."""
    originals = [value.const_value for value in values]
    try:
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = tensor
        yield
    finally:
        for value, original in zip(values, originals, strict=True):
            value.const_value = original


def placed(
    values: Sequence[ir.Value], data_name: str, places: Sequence[tuple[int, int]]
) -> contextlib.AbstractContextManager[None]:
    """The values refer to the data file for as long as the model is serialized."""
    return holding(
        values,
        [
            ir.ExternalTensor(
                data_name, *place, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
            )
            for value, place in zip(values, places, strict=True)
            if (tensor := value.const_value) is not None
        ],
    )
