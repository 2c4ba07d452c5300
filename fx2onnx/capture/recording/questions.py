"""The questions that Python asks of a tensor beyond operators: answered as eager PyTorch does, or refused with the
user's line.

The tensors of a captured module are plain, so most answers are right by themselves. These are the others: what hangs on
memory (address, base, version), on autograd (``requires_grad``, ``grad_fn``), or on the numbers themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.data_numbers import UNKNOWN, DataNumber
from fx2onnx.capture.rare_roads import RunPlugin, road
from fx2onnx.capture.reasons import Reason, because, with_inputs
from fx2onnx.capture.recording.below_autograd import BelowAutograd, addresses_of
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, View
from fx2onnx.capture.registry import load_family
from fx2onnx.capture.shapes.shape_env import NOT_NUMPY
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.asked_code import calls_numpy, formats_message, is_shown
from fx2onnx.torchcompat.dispatch import no_dispatch, no_functions_of_subclasses
from fx2onnx.torchcompat.fake_tensors import CPU
from fx2onnx.torchcompat.frames import user_location
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.tensor_questions import Own, is_asked_by_copy
from fx2onnx.torchcompat.tensor_questions import requires_grad as own_requires_grad

aten = torch.ops.aten

Answer: TypeAlias = Callable[..., Any]
"""Takes ``Questions``, how torch itself answers, the tensor, and the call's other arguments."""

_OF_HELD: dict[str, Answer] = {}
"""Asked of a tensor without data."""
_OF_NUMBERS: dict[str, Answer] = {}
"""Asked of any tensor: real ones may have been written to."""

_FIRST_ADDRESS, _APART = 1 << 44, 1 << 36
"""The address of the first tensor without data, and the distance of the next: addresses mean something only beside one
another."""


def _answers(table: dict[str, Answer], *names: str) -> Callable[[Answer], Answer]:
    def decorate(function: Answer) -> Answer:
        table.update(dict.fromkeys(names, answers_for_caller(function)))
        return function

    return decorate


@answers_for_caller
class Questions(RunPlugin):
    """Answers for the module that ``tracer`` records, where torch itself would not say what eager PyTorch does."""

    tracer: Tracer

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self._gradients: Any = None
        self._addresses: dict[int, int] = {}
        self._next = itertools.count(_FIRST_ADDRESS, _APART)

    def answer(self, name: str, own: Own, asked: Any, *args: Any, **kwargs: Any) -> Any:
        """The answer to the question ``name`` of a tensor, a storage or a class."""
        if isinstance(asked, torch.UntypedStorage | torch.TypedStorage):
            return _OF_STORAGE[name](self, own, asked, *args, **kwargs)
        if name == "__new__":
            return _parameter(self, own, asked, *args, **kwargs)
        if name in _OF_NUMBERS:
            return _OF_NUMBERS[name](self, own, asked, *args, **kwargs)
        is_known = name == "data_ptr" or self.tracer.values.fake_mode.holds(asked)
        return (_OF_HELD[name] if is_known else _own)(self, own, asked, *args, **kwargs)

    def tracked(self, tensor: torch.Tensor) -> Any:
        """A tensor with the history that autograd would have of ``tensor`` in eager PyTorch."""
        if self._gradients is None:
            self._gradients = road("autograd's answers").Gradients(self.tracer)
        return self._gradients.of(tensor)

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's present numbers, where they do not depend on an input."""
        tracer = self.tracer
        if not tracer.values.fake_mode.holds(tensor):
            view = tracer.values.views.get(id(tensor))
            is_as_it_was = view is None or (not view.memory.version and tracer.values.is_over_its_own(tensor))
            if is_as_it_was and self.given_at(addresses_of(tensor)) is None:
                return tensor if tensor.device.type != "meta" else None
        node = tracer.values.node_of(tensor)
        value = tracer.values.value_of(node)
        if value is not None:
            tracer.numbers_read.append((node, user_location()))
        with no_dispatch():
            return None if value is None else value.detach()

    def given_at(self, addresses: range) -> tuple[torch.Tensor, torch.Tensor] | None:
        """A real tensor that is an input and has some of these addresses, with its fake."""
        below = self.tracer.plugins.get("below autograd")
        return below.given_at(addresses) if isinstance(below, BelowAutograd) else None

    def numbers_of(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """``value_of``. Raises UserError E104 where there is none."""
        value = self.value_of(tensor)
        if value is None:
            error = UserError(
                "E104",
                f"Python needs the numbers of a tensor: {what}",
                where=user_location(),
                module_path=PATHS.current,
                why="they are known only when the model runs",
                next=(
                    *([NOT_NUMPY] if calls_numpy() else []),
                    "keep the computation in tensors",
                    "leave out of forward what is only to be looked at",
                ),
            )
            raise with_inputs(error, self.tracer.inputs_behind([self.tracer.values.node_of(tensor)]))
        return value

    def address_of(self, memory: Memory) -> int:
        address = self._addresses.get(id(memory))
        if address is None:
            sources = self.tracer.values.sources.values()
            real = next((view.tensor for view in sources if view.memory is memory and not self._is_held(view)), None)
            address = self._addresses[id(memory)] = next(self._next) if real is None else _real_address(real)
        return address

    def _is_held(self, view: View) -> bool:
        return self.tracer.values.fake_mode.holds(view.tensor)


def _real_address(tensor: torch.Tensor) -> int:
    with no_dispatch():
        return tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.element_size()


def _own(questions: Questions, own: Own, tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
    return own(tensor, *args, **kwargs)


@_answers(_OF_HELD, "_base")
def _base(questions: Questions, own: Own, tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that the views of it begin at; ``detach`` begins anew."""
    view = questions.tracer.values.view_of(tensor)
    begin = max((depth + 1 for depth, step in enumerate(view.steps) if step.func is aten.detach.default), default=0)
    if begin == len(view.steps):
        return None
    steps = view.steps[:begin]
    same = (other for other in questions.tracer.values.views.values() if other.memory is view.memory)
    return next((other.tensor for other in same if other.steps == steps), None)


@_answers(_OF_HELD, "_is_view")
def _is_view(questions: Questions, own: Own, tensor: torch.Tensor) -> bool:
    return _base(questions, own, tensor) is not None


@_answers(_OF_HELD, "_version")
def _version(questions: Questions, own: Own, tensor: torch.Tensor) -> int:
    return questions.tracer.values.view_of(tensor).memory.version


@_answers(_OF_HELD, "data_ptr")
def _data_ptr(questions: Questions, own: Own, tensor: torch.Tensor) -> int | torch.SymInt:
    values = questions.tracer.values
    offset = values.replaced[id(tensor)] if values.is_replaced(tensor) else tensor.storage_offset()
    begin: int = questions.address_of(values.view_of(tensor).memory)
    return begin + offset * tensor.element_size()


def _storage_device(questions: Questions, own: Own, storage: torch.UntypedStorage) -> torch.device:
    device: torch.device = own(storage)
    if device.type != "meta":
        return device
    held = _held_at(questions, storage)
    return CPU if held is None else questions.tracer.values.fake_mode.device_of(held.tensor)


def _storage_address(questions: Questions, own: Own, storage: torch.UntypedStorage) -> int:
    held = _held_at(questions, storage)
    return int(own(storage)) if held is None else questions.address_of(held.memory)


def _element(
    questions: Questions, own: Own, storage: torch.UntypedStorage | torch.TypedStorage, *args: object
) -> object:
    plain = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    held = _held_at(questions, plain)
    begin = plain.data_ptr()
    given = questions.given_at(range(begin, begin + plain.nbytes())) if held is None else (None, held.tensor)
    if given is not None:
        questions.numbers_of(given[1], "its memory is read")
    with no_dispatch():
        return own(storage, *args)


def _held_at(questions: Questions, storage: torch.UntypedStorage) -> View | None:
    return questions.tracer.values.view_at(storage._cdata)


_OF_STORAGE: dict[str, Answer] = {"device": _storage_device, "data_ptr": _storage_address, "__getitem__": _element}


@_answers(_OF_HELD, "requires_grad")
def _requires_grad(questions: Questions, own: Own, tensor: torch.Tensor) -> bool:
    return bool(own(tensor)) or questions.tracked(tensor).requires_grad


@_answers(_OF_HELD, "grad_fn")
def _grad_fn(questions: Questions, own: Own, tensor: torch.Tensor) -> object:
    return own(tensor) or (None if own_requires_grad(tensor) else questions.tracked(tensor).grad_fn)


@_answers(_OF_HELD, "is_leaf")
def _is_leaf(questions: Questions, own: Own, tensor: torch.Tensor) -> bool:
    return bool(own(tensor)) and (own_requires_grad(tensor) or questions.tracked(tensor).is_leaf)


def _parameter(
    questions: Questions, own: Own, kind: type, data: torch.Tensor | None = None, requires_grad: bool = True
) -> object:
    """``nn.Parameter(data)``: an alias, of the class that is asked for."""
    values = questions.tracer.values
    if data is None or (not values.fake_mode.holds(data) and values.is_over_its_own(data)):
        return own(kind, data, requires_grad)
    alias = data.detach()
    alias.__class__ = kind
    return alias.requires_grad_(requires_grad)


@_answers(_OF_NUMBERS, "as_subclass")
def _as_subclass(questions: Questions, own: Own, tensor: torch.Tensor, kind: type) -> torch.Tensor:
    """An alias, of the class that is asked for. One that takes operators below autograd would see none."""
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
        return own(tensor, kind)  # type: ignore[no-any-return]
    with no_functions_of_subclasses():
        alias: torch.Tensor = aten.alias.default(tensor)
    alias.__class__ = kind
    return alias


@_answers(_OF_NUMBERS, "tolist")
def _tolist(questions: Questions, own: Own, tensor: torch.Tensor) -> object:
    """The list of a tensor; integers that depend on an input are symbols. One of dynamic sizes can be printed only."""
    value = questions.value_of(tensor)
    is_dynamic = any(isinstance(size, torch.SymInt) for size in tensor.shape)
    if value is None and is_dynamic and is_shown(questions.tracer.warnings):
        value = _shown_instead(questions, tensor)
    if value is not None:
        with no_dispatch():
            return own(value)
    return _numbers(questions, tensor)


def _shown_instead(questions: Questions, tensor: torch.Tensor) -> torch.Tensor:
    """NaN or 0 at the example's sizes."""
    shape = [int(questions.tracer.sizes.hint(unwrap(size))) for size in tensor.shape]
    with no_dispatch():
        return torch.full(shape, math.nan if tensor.is_floating_point() else 0, dtype=tensor.dtype)


def _numbers(questions: Questions, tensor: torch.Tensor) -> object:
    if tensor.dim() == 0:
        return tensor.item()
    rows = [_numbers(questions, part) for part in tensor]
    tracer = questions.tracer
    if tensor.dim() == 1 or not rows:
        return rows
    node = tracer.values.node_of(tensor)
    what = f"Python goes through the {len(rows)} rows of %{node.name}: with more or fewer it needs an export of its own"
    tracer.sizes.note_assertion(Assumption(what, user_location()), is_learnt=True)
    return rows


@_answers(_OF_HELD, "item")
def _item(questions: Questions, own: Own, tensor: torch.Tensor) -> object:
    """The number of a tensor of one element; a data-dependent real number is one that Python may compute with and
    compare, without gradients.
    """
    has_one = all(type(size) is int and size == 1 for size in tensor.shape)
    if not has_one or not tensor.dtype.is_floating_point or questions.value_of(tensor) is not None:
        return own(tensor)
    return DataNumber(tensor.detach().double(), _Unknown(questions.tracer, tensor))


@dataclass(frozen=True, slots=True)
class _Unknown:
    """The number of ``tensor``."""

    tracer: Tracer
    tensor: torch.Tensor

    def refuse(self) -> NoReturn:
        error = load_family("overloads.unbacked_scalars").unknown_number(
            self.tracer, self.tracer.values.node_of(self.tensor), aten.item.default
        )
        raise because(Reason.REAL_NUMBER, error)

    def expect(self, holds: torch.Tensor, text: str, error: type[Exception]) -> None:
        if "loops" in self.tracer.plugins and (loops := self.tracer.plugin("loops").open):
            holds = loops[-1].exits.unless_left(holds)
        number = unwrap(holds.to(torch.int64).item())
        self.tracer.sizes.assume(Relation("eq", (number, 1)), user_location(), text, error)

    def is_shown(self) -> bool:
        return formats_message() or is_shown(self.tracer.warnings)


@_answers(_OF_NUMBERS, "numpy")
def _numpy(questions: Questions, own: Own, tensor: torch.Tensor, *, force: bool = False) -> object:
    """Read-only: nothing shows what is written to it."""
    if questions.value_of(tensor) is None and is_shown(questions.tracer.warnings):
        with no_dispatch():
            return _shown_instead(questions, tensor).numpy()
    if questions.tracer.has_arrays and questions.value_of(tensor) is None:
        return road("NumPy in tensors").array_of(tensor)
    try:
        value = questions.numbers_of(tensor, "a NumPy array of it is made")
    except UserError as error:
        error.reason = Reason.ARRAY
        raise
    with no_dispatch():
        array = own(value, force=force).copy()
    array.flags.writeable = False
    return array


@_answers(_OF_NUMBERS, "__repr__")
def _repr(questions: Questions, own: Own, tensor: torch.Tensor, **kwargs: object) -> object:
    """The message of a check, which eager PyTorch makes and drops, needs no numbers."""
    if formats_message() and questions.value_of(tensor) is None:
        return f"a tensor of {tensor.dtype}"
    if questions.value_of(tensor) is None and is_shown(questions.tracer.warnings):
        return f"tensor({UNKNOWN}, dtype={tensor.dtype})"
    value = questions.numbers_of(tensor, "it is printed")
    with no_dispatch():
        if value is not tensor:
            value = value.detach().requires_grad_(tensor.requires_grad)
        return own(value, **kwargs)


@_answers(_OF_NUMBERS, "apply_")
@_answers(_OF_NUMBERS, "map_")
def _mapped(questions: Questions, own: Own, tensor: torch.Tensor, *args: Any) -> object:
    """The elements that a function of Python computes from known numbers, written as any other value is."""
    *tensors, function = args
    values = [questions.numbers_of(each, "a function of Python computes its elements") for each in (tensor, *tensors)]
    with no_dispatch():
        computed = own(values[0].clone(), *values[1:], function)
    with torch.no_grad():
        return tensor.copy_(questions.tracer.values.constant(computed))


@_answers(_OF_NUMBERS, "__dlpack__")
def _dlpack(questions: Questions, own: Own, tensor: torch.Tensor, **kwargs: object) -> object:
    value = questions.numbers_of(tensor, "its memory is handed to another library")
    with no_dispatch():
        return own(value, **kwargs)


@_answers(_OF_NUMBERS, "__reduce_ex__")
def _reduce(questions: Questions, own: Own, tensor: torch.Tensor, protocol: int) -> object:
    """``copy.copy`` makes a tensor over the same memory, all else a copy of the numbers."""
    if is_asked_by_copy():
        return (_alias, (tensor, dict(vars(tensor))))
    value = questions.numbers_of(tensor, "it is pickled")
    with no_dispatch():
        return own(value, protocol)


def _alias(tensor: torch.Tensor, attributes: dict[str, object]) -> torch.Tensor:
    alias = tensor.detach()
    vars(alias).update(attributes)
    return alias


@_answers(_OF_HELD, "__deepcopy__")
def _deepcopy(questions: Questions, own: Own, tensor: torch.Tensor, memo: dict[int, object]) -> object:
    if not tensor.is_leaf:
        return own(tensor, memo)  # which says why not
    if id(tensor) not in memo:
        memo[id(tensor)] = copied = tensor.detach().clone()
        vars(copied).update(vars(tensor))
    return memo[id(tensor)]


PLUGIN = Questions
