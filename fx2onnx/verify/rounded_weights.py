"""The module's numbers as its file has them: weights rounded as a quantized file has them, inputs of 16 bits, exact products of codes.

On CPUs without VNNI the int8 kernels of eager PyTorch and of onnxruntime add pairs of products in 16 bits, where 255 * 127 +
255 * 127 has no room: what they give then is no measure of a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch.nn import functional

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.judge.constants import NEAR_THE_END
from fx2onnx.judge.engines import Array
from fx2onnx.judge.tolerance import is_mask_value
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.optimize.weights import ArrangedTensor, JoinedTensor, ScaledTensor, TransposedTensor
from fx2onnx.quantize.stored import METADATA_KEY, Stated, read
from fx2onnx.quantize.weights import parts_of
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.module_state import NothingToCompare


@contextlib.contextmanager
def as_quantized(
    verdict: Verdict,
    model: onnx.ModelProto,
    folder: str,
    root: torch.nn.Module,
    call: tuple[Any, Mapping[str, Any] | None],
    training: bool | None = False,
    input_names: Sequence[str] | None = None,
    only: Collection[str] | None = None,
) -> Iterator[contextlib.AbstractContextManager[None] | None]:
    """The module's weights as the file says that it has them; afterwards they are as they were. ``folder``: of the file.
    ``only``: the names of the weights to round, of all that the file does.
    ``call``: the example inputs, with which the module of a file that was quantized after its export is exported once more.
    Gives a context, to be entered more than once, in which they are the module's own; None where the file rounds none.

    Raises: NothingToCompare where the file rounds what the module computes.
    """

    def export() -> ir.Model:
        from fx2onnx.verify.locating.program import ModuleProgram, Settings

        settings = Settings.of_file(model, training)
        settings = replace(settings, capture=replace(settings.capture, input_names=input_names))
        return ModuleProgram.of(root, *call, settings).exported

    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), "")
    stated = {name: said for name, said in read(text).items() if only is None or name in only}
    given = _Weights()
    try:
        with record("quantize the module's weights"):
            if stated:
                for own, numbers in _Rounded(verdict, model, folder, root, export).all(stated):
                    given.exchange(own, _as_tensor(numbers, own))
        if stated:
            kinds = ", ".join(sorted({said.kind for said in stated.values()}))
            verdict.note(f"compared with the module with {len(stated)} weights rounded as the file has them ({kinds})")
        yield given if stated else None
    finally:
        given.swap()


class _Weights(contextlib.AbstractContextManager[None]):
    """Weights that a module has inside, in the place of those that it has outside."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def exchange(self, weight: torch.Tensor, outside: torch.Tensor) -> None:
        """Keep the numbers of ``weight`` for the inside, and let it have others outside."""
        self._pairs.append((weight, weight.data))
        weight.data = outside

    def swap(self) -> None:
        """Let each weight have the numbers that are kept for it, and keep those that it had."""
        for place in reversed(range(len(self._pairs))):
            weight, kept_data = self._pairs[place]
            self._pairs[place] = (weight, weight.data)
            weight.data = kept_data

    def __enter__(self) -> None:
        self.swap()

    def __exit__(self, *_: object) -> None:
        self.swap()


class _Rounded:
    """The numbers that a file has in the place of a module's weights."""

    def __init__(
        self,
        verdict: Verdict,
        model: onnx.ModelProto,
        folder: str,
        root: torch.nn.Module,
        export: Callable[[], ir.Model],
    ) -> None:
        self.verdict, self.folder, self.export = verdict, folder, export
        self.tensors = {
            **dict(root.named_buffers(remove_duplicate=False)),
            **dict(root.named_parameters(remove_duplicate=False)),
        }
        self.held = {value.name: value for value in model.graph.initializer}

    def all(self, stated: Mapping[str, Stated]) -> list[tuple[torch.Tensor, Array]]:
        """The weights of the module, each with its numbers; a row of the verdict for each that cannot be had."""
        found = [pair for name in stated if name in self.tensors for pair in self._own(name, stated[name])]
        others = [name for name in stated if name not in self.tensors]
        return found + (self._made(others, stated) if others else [])

    def _own(self, name: str, said: Stated) -> Iterator[tuple[torch.Tensor, Array]]:
        own = self.tensors[name]
        numbers = self._numbers(name, said, to_numpy(own))
        if numbers is None:
            return
        if numbers.shape != own.shape:
            self._fail(name, "its codes are of another shape")
        else:
            yield own, numbers

    def _numbers(self, name: str, said: Stated, array: Array) -> Array | None:
        try:
            return said.numbers(array, self._in_file)
        except (ValueError, KeyError, TypeError) as error:
            self._fail(name, f"{error}")
            return None

    def _in_file(self, name: str) -> ir.TensorProtocol:
        return ir.serde.deserialize_tensor(self.held[name], self.folder)

    def _fail(self, name: str, problem: str) -> None:
        self.verdict.rows.append(Row.failed("file", name, "weights", problem))

    def _made(self, names: list[str], stated: Mapping[str, Stated]) -> list[tuple[torch.Tensor, Array]]:
        """Weights that the export made of the module's: transposed, beside each other, in another order, or scaled by a norm."""
        try:
            made = self.export().graph.initializers
        except UserError as error:
            raise NothingToCompare(
                f"{_MADE.format(names[0])}, and the module does not export again: {error}"
            ) from error
        found = []
        for name in names:
            tensor = made[name].const_value if name in made else None
            if tensor is None:
                self._fail(name, "the module has no such weight")
                continue
            numbers = self._numbers(name, stated[name], np.asarray(tensor.numpy()))
            if numbers is None:
                continue
            for source, array in _sources(tensor, numbers, stated[name]):
                if source not in self.tensors or tuple(self.tensors[source].shape) != array.shape:
                    raise NothingToCompare(
                        f"{_MADE.format(name)} computes it: export with quantize=, which leaves it in float"
                    )
                found.append((self.tensors[source], array))
        return found


_MADE = "the weight {} was rounded in a file, and the module"


def _sources(tensor: ir.TensorProtocol, numbers: Array, said: Stated) -> Iterator[tuple[str, Array]]:
    """The weights, by name, of which ``tensor`` was made, such that it would have these ``numbers``."""
    if isinstance(tensor, ArrangedTensor):
        for part in parts_of(tensor):
            array = np.asarray(part.numpy())
            yield part.name or "", replace(said, axis=array.ndim - 1).numbers(array, _nothing)
    elif isinstance(tensor, JoinedTensor):
        ends = np.cumsum([part.shape.numpy()[-1] for part in tensor.sources])
        for part, own in zip(tensor.sources, np.split(numbers, ends[:-1], axis=-1), strict=True):
            yield from _sources(part, own, said)
    elif isinstance(tensor, TransposedTensor):
        yield from _sources(tensor.source, numbers.transpose(np.argsort(tensor.perm)), said)
    elif isinstance(tensor, ScaledTensor):
        source, *statistics = tensor.sources
        factor = tensor.factor(*(each.numpy() for each in statistics))
        own = np.asarray(source.numpy())
        quotient = np.divide(
            numbers.reshape(tensor.view), factor, out=own.reshape(tensor.view).astype(np.float64), where=factor != 0
        )
        yield from _sources(source, quotient.reshape(own.shape).astype(own.dtype), said)
    else:
        yield tensor.name or "", numbers


def _nothing(name: str) -> ir.TensorProtocol:
    raise KeyError(name)


def _as_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    numbers = np.ascontiguousarray(array)
    if like.dtype == torch.bfloat16:
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(numbers).to(like.device)


_FLOATS = (np.float16, np.float32)
_TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded_inputs(tensors: Sequence[torch.Tensor], names: Sequence[str | None], file: Interface) -> list[torch.Tensor]:
    """The tensors with numbers that the file's inputs can have: what is rounded before both run is no difference."""
    if not file.grain.epsilon:
        return list(tensors)
    found = []
    for tensor, name in zip(tensors, names, strict=True):
        dtype = file.dtypes.get(name or "")
        narrow = None if dtype is None else _TORCH.get(np.dtype(dtype).name)
        is_other = narrow is not None and tensor.is_floating_point() and tensor.dtype != narrow
        found.append(tensor.to(narrow).to(tensor.dtype) if is_other else tensor)
    return found


def as_input(array: Array, name: str, file: Interface) -> Array:
    """The numbers in the dtype that the file's input has."""
    dtype = file.dtypes.get(name)
    if not file.grain.epsilon or dtype is None or not _is_float(array) or not _is_float(np.empty(0, dtype)):
        return array
    return array.astype(dtype, copy=False)


def widened(got: Array, want: Array) -> Array:
    """Floats in the dtype of ``want``; anything else as it is."""
    return got.astype(want.dtype) if got.dtype != want.dtype and _is_float(got) and _is_float(want) else got


def as_module_has_it(got: Array, want: Array) -> Array:
    """An output in the module's dtype, where both are floats of other widths; where it is infinite because the file's dtype
    ends before the module's number, this.
    """
    found = widened(got, want)
    if found is got or found.shape != want.shape or np.isfinite(found).all():
        return found
    end = (1 - NEAR_THE_END) * float(ml_dtypes.finfo(got.dtype).max)
    is_beyond = np.isinf(found) & (np.abs(want) > end) & (np.signbit(found) == np.signbit(want))
    return np.where(is_beyond, want, found)


def narrowed(array: Array, dtype: Any) -> Array:
    """Floats in another dtype, those that masks add as its lowest; as they are where it has no room for them."""
    if array.dtype == dtype or not _is_float(array):
        return array
    end = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(over="ignore"):
        masked = is_mask_value(array) & np.isfinite(array)
        found = np.where(masked, np.copysign(end, array), array).astype(dtype)
    return found if np.array_equal(np.isfinite(found), np.isfinite(array)) else array


def _is_float(array: Array) -> bool:
    return array.dtype in _FLOATS or array.dtype.name == "bfloat16"


OVERFLOWS = (
    "eager PyTorch's own int8 kernels overflow on this CPU, which adds pairs of products in 16 bits ({}): compared with what "
    "the codes come to"
)
"""A note of the verdict."""
_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


def is_product(func: Any) -> bool:
    """Return whether the operator is a layer of codes that quantizes what it gives, in steps that do not depend on it."""
    name = func._schema.name
    return (
        func.namespace == "quantized"
        and name.removeprefix("quantized::").startswith(("linear", "conv"))
        and any(argument.name in ("output_scale", "Y_scale_i") for argument in func._schema.arguments)
    )


class ExactCodes(EagerMode):
    """The quantized values that the sums come to, for a layer whose values are off by more than a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overflowed: dict[str, None] = {}
        """The operators that were off."""

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if not is_product(func) or not isinstance(result, torch.Tensor) or not result.is_quantized:
            return result
        names = [argument.name for argument in func._schema.arguments]
        exact = _exact(func._schema.name, dict(zip(names, args, strict=False)) | kwargs, result)
        if int((exact.int_repr().int() - result.int_repr().int()).abs().max()) <= 1:
            return result
        self.overflowed.setdefault(func._schema.name)
        return exact


def _exact(name: str, given: Mapping[str, Any], like: torch.Tensor) -> torch.Tensor:
    x = given.get("qx", given.get("X")).dequantize().double()
    packed = next(given[key] for key in ("packed_weight", "W_prepack", "weight") if key in given)
    weight, bias = packed.unpack()
    weight, bias = weight.dequantize().double(), None if bias is None else bias.detach().double()
    if "linear" in name:
        found = functional.linear(x, weight, bias)
    else:
        is_line = "1d" in name  # PyTorch packs one axis as two
        spare = packed.output_padding() if packed.transpose() else [0] * (weight.dim() - 2)
        settings = (packed.stride(), packed.padding(), packed.dilation(), packed.transpose(), spare, packed.groups())
        found = torch.ops.aten.convolution.default(x.unsqueeze(2) if is_line else x, weight, bias, *settings)
        found = found.squeeze(2) if is_line else found
    if "qaccum" in given:
        found = found + given["qaccum"].dequantize()
    if "negative_slope" in given:
        found = functional.leaky_relu(found, given["negative_slope"])
    for word, function in _AFTER.items():
        found = function(found) if name.endswith(f"_{word}") else found
    return torch.quantize_per_tensor(found.float(), like.q_scale(), like.q_zero_point(), like.dtype)
