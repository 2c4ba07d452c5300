"""The interface of a file: inputs, outputs, conditions, constant inputs; and which argument goes into which input."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from fx2onnx.base import typed_json
from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import BAKED, CHANGED, OPTIONAL_INPUTS, STATE
from fx2onnx.irx import given
from fx2onnx.judge.memory import LARGE_BYTES, weights_beside
from fx2onnx.judge.tolerance import MODULES_OWN, Grain
from fx2onnx.precision.options import EPSILONS, LEAST_NORMAL, word_in
from fx2onnx.precision.options import METADATA_KEY as PRECISION_KEY
from fx2onnx.semantics.check import open_file
from fx2onnx.semantics.reading.load import LoadedProto
from fx2onnx.semantics.reading.weights import WeightStore
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.stated import SizeCondition
from fx2onnx.sizes.text import parse_dim, size_of
from fx2onnx.verify.file_bounds import FileBounds
from fx2onnx.verify.float_values import BY_ANY_ENGINE, BY_ANY_ENGINE_IN_HALF, silent_on
from fx2onnx.verify.module_state import has_codes, operators_of


@dataclass(frozen=True, slots=True)
class Declared:
    """Dtype and sizes as the file declares them of an output; a size is a number, a text, or None where nothing is said."""

    dtype: Any
    sizes: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of a file."""

    inputs: list[str]
    axes: dict[str, dict[int, str]]
    """The named dims of each input."""
    outputs: list[str]
    declared: dict[str, Declared]
    """The declared types of the outputs."""
    conditions: list[SizeCondition]
    baked: tuple[str, ...]
    state: Mapping[str, str]
    """Inputs with state, and the outputs with their next values."""
    narrowed: str
    """A note of what computes with fewer digits than the module's numbers have; empty where nothing does."""
    grain: Grain = MODULES_OWN
    """The distance between the numbers with which the file computes, if it is not as in the module
    (docs/precision.md)."""
    dtypes: Mapping[str, Any] = field(default_factory=dict)
    """NumPy's dtypes of the inputs."""
    is_half: bool = False
    """True if values are in float16, which ends at 65504, or the file computes in 16 bits where the module does not."""
    is_recurrent: bool = False
    """True if the file has one of ONNX's recurrent operators."""
    is_narrow: bool = False
    """True if the file computes in float16 where the module does not."""
    says_nothing: frozenset[str] = frozenset()
    """Kinds of floats that show nothing of such a file (float_values.py)."""
    bounds: FileBounds = field(default_factory=FileBounds)
    """The numbers of the file beyond which its results may change their kind."""

    @property
    def by_any_engine(self) -> frozenset[str]:
        """Kinds of values on which an output is right where some engine gives it."""
        return BY_ANY_ENGINE_IN_HALF if self.is_narrow else BY_ANY_ENGINE

    @staticmethod
    def of(proto: onnx.ModelProto) -> Interface:
        graph = proto.graph
        metadata = {each.key: each.value for each in proto.metadata_props}
        weights = {initializer.name for initializer in graph.initializer if OPTIONAL_INPUTS not in metadata}
        inputs = [value for value in graph.input if value.name not in weights]
        axes = {
            value.name: {
                axis: dim.dim_param for axis, dim in enumerate(value.type.tensor_type.shape.dim) if dim.dim_param
            }
            for value in inputs
        }
        grain = grain_of(metadata)
        kinds = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}
        kinds |= {initializer.data_type for initializer in graph.initializer}
        return Interface(
            inputs=[value.name for value in inputs],
            axes=axes,
            outputs=[value.name for value in graph.output],
            declared={value.name: _declared(value) for value in graph.output},
            conditions=size_conditions.read(metadata.get(size_conditions.METADATA_KEY, "[]")),
            baked=_baked(metadata.get(BAKED, "[]")),
            state={
                name: output for key in (STATE, CHANGED) for name, output in json.loads(metadata.get(key, "{}")).items()
            },
            narrowed=_narrowed(metadata),
            grain=grain,
            dtypes={value.name: _declared(value).dtype for value in inputs},
            bounds=FileBounds.of(proto),
            is_recurrent=not {"RNN", "LSTM", "GRU"}.isdisjoint(operators_of(proto)),
            says_nothing=silent_on(operators_of(proto), has_codes=has_codes(proto)),
            is_narrow=word_in(metadata) == "float16",
            is_half=onnx.TensorProto.FLOAT16 in kinds or grain.epsilon > 0,
        )


def grain_of(metadata: Mapping[str, str]) -> Grain:
    """The distance between the numbers with which a file of this metadata computes."""
    word = word_in(metadata)
    return Grain(EPSILONS.get(word, 0.0), LEAST_NORMAL.get(word, 0.0))


def _narrowed(metadata: Mapping[str, str]) -> str:
    half = metadata.get(PRECISION_KEY, "")
    return half and f"the file computes in 16 bits, whose rounding is allowed: {half[:500]}"


def _declared(value: Any) -> Declared:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type) if kind.elem_type else None
    if not kind.HasField("shape"):
        return Declared(dtype, None)
    sizes = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param if dim.HasField("dim_param") else None
        for dim in kind.shape.dim
    ]
    return Declared(dtype, tuple(sizes))


def contradiction(declared: Declared, shape: Sequence[int], dtype: Any, sizes: Mapping[str, int]) -> str:
    """The contradiction between what the file declares of an output and its numbers at these sizes; empty where they agree."""
    if declared.dtype is not None and declared.dtype != dtype:
        return f"the file declares {declared.dtype}, and gives {dtype}"
    if declared.sizes is None:
        return ""
    if len(declared.sizes) != len(shape):
        return f"the file declares {len(declared.sizes)} axes, and gives {len(shape)}"
    for axis, (text, size) in enumerate(zip(declared.sizes, shape, strict=True)):
        stated = _stated(text, sizes)
        if stated is not None and stated != size:
            return f"the file declares the size {text} on axis {axis}, and gives {size}"
    return ""


def _stated(text: int | str | None, sizes: Mapping[str, int]) -> int | None:
    if isinstance(text, int):
        return text
    dim = parse_dim(text) if isinstance(text, str) else None
    if isinstance(dim, Dim):
        return size_of(dim, sizes) if dim.symbols() <= set(sizes) else None
    return None


def _baked(text: str) -> tuple[str, ...]:
    """The arguments that are constants of the file. Raises UserError E303 where its metadata does not hold names."""
    with typed_json.metadata(BAKED):
        return typed_json.built(tuple[str, ...], json.loads(text), BAKED)


OF_FOLDER = "fx2onnx generate FOLDER --prompt TEXT --verify --source SOURCE; in Python fx2onnx.verify_generation"
"""The commands that compare an exported folder with its source."""


def assign(arguments: Sequence[str], inputs: Sequence[str], baked: Collection[str]) -> list[str | None]:
    """For each argument the input of the file that takes it, by name, or else in order; None for one that is no input.

    Raises:   UserError E001 where the file has more inputs than there are arguments.
    """
    if set(inputs) <= set(arguments):
        return [name if name in inputs else None for name in arguments]
    if len(inputs) > len(arguments):
        raise UserError(
            "E001",
            f"the model has {len(inputs)} inputs, the module gets {len(arguments)} tensors",
            why=f"the model's are {', '.join(inputs)}",
            next=["give the arguments that the model was exported with", f"a file of an exported folder: {OF_FOLDER}"],
        )
    kept = [name for name in arguments if name not in baked or name in inputs]
    left = iter(inputs)
    return [next(left, None) if name in kept else None for name in arguments]


def vanished(arguments: Iterable[str], assigned: Iterable[str | None], baked: Collection[str]) -> list[str]:
    """Arguments that the file has no input for though nobody said that they are constant."""
    return [name for name, taken in zip(arguments, assigned, strict=True) if taken is None and name not in baked]


def _check_weights(loaded: LoadedProto) -> None:
    """Raises UserError E302 where external data is missing or cut off."""
    store = WeightStore(loaded.folders)
    with contextlib.suppress(MemoryError):  # an engine may do with less, or says that it cannot
        for tensor in loaded.proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                store.array(tensor, f"initializer {tensor.name!r}")


@contextlib.contextmanager
def as_file(model: Any) -> Iterator[str]:
    """The path of a model of any kind that ``given.as_file`` takes, with large weights beside it.

    Raises: UserError E001, E302, E303 for a file that is no valid model.
    """
    with given.as_file(model) as path:
        if not hasattr(model, "owned"):  # an export's own
            _check_weights(open_file(path))
        if os.path.getsize(path) <= LARGE_BYTES:
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="fx2onnx-verify-", ignore_cleanup_errors=True) as folder:
            yield weights_beside(path, folder)
