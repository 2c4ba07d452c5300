"""Checks feeds against the model's inputs before anything runs."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.reading.program import Program, denotations_of
from fx2onnx.semantics.types import (
    TENSOR_NAMES,
    DataType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Value,
    as_value,
    describe,
    is_tensor_type,
    listed,
    onnx_dtype,
    string_array,
    type_name,
)

if TYPE_CHECKING:  # what reads conditions is imported for the few files that have some
    from fx2onnx.sizes.expr import Dim
    from fx2onnx.sizes.stated import SizeCondition


logger = logging.getLogger("fx2onnx.runner")
REFUSE_TWO_SIZES = "fx2onnx.refuse_two_sizes"
"""The config entry that says whether feeds of two sizes under one name are refused."""
MAX_ACCEPTED = 64
"""Kinds of feeds that are remembered; endless new shapes must not fill the memory."""


_DTYPES = {f"tensor({name})": dtype for dtype, name in TENSOR_NAMES.items()}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of the model as onnxruntime shows it."""

    name: str
    type: str
    shape: list[int | str | None]
    """The dims of a tensor; empty also where the rank is not known, and for other values."""
    value_type: Any = None
    dims: list[int | str | None] | None = None
    """The dims of the tensors in the value; None where their rank is not known."""

    def refined(self, sizes: Sequence[int | None]) -> NodeArg:
        """The same with numbers in place of what is no number, where ``sizes`` has one."""
        if not is_tensor_type(self.value_type) or (self.dims is not None and len(self.dims) != len(sizes)):
            return self
        dims = [size if size is not None and not isinstance(dim, int) else dim
                for dim, size in zip(self.dims or [None] * len(sizes), sizes, strict=True)]  # fmt: skip
        return NodeArg(self.name, self.type, dims, self.value_type, dims)

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


def _expressions(args: Sequence[NodeArg]) -> dict[str, Dim]:
    texts = {dim for arg in args for dim in arg.dims or () if isinstance(dim, str) and not dim.isidentifier()}
    if not texts:
        return {}
    from fx2onnx.sizes.expr import Dim
    from fx2onnx.sizes.text import parse_dim

    parsed = {text: parse_dim(text) for text in texts}
    return {text: dim for text, dim in parsed.items() if isinstance(dim, Dim)}


class FeedChecker:
    """Holds what the model needs; ``check`` binds symbolic dims once per run."""

    def __init__(
        self,
        args: Sequence[NodeArg],
        optional: frozenset[str],
        fixed: Mapping[str, int],
        conditions: Sequence[SizeCondition] = (),
        *,
        says_sizes: bool = False,
        refuses_two_sizes: bool = False,
    ) -> None:
        self.conditions = conditions
        self.refuses_two_sizes = refuses_two_sizes or says_sizes
        """True if one name is one size. Other exporters have one name, such as ``?``, for sizes that differ."""
        self.warned: set[str] = set()
        self.expressions = _expressions(args) if says_sizes else {}
        """Sizes that are made of others, such as ``n // 2``. Files of other exporters have such texts as mere names."""
        self.args = {arg.name: arg for arg in args}
        self.accepted: set[tuple[Any, ...]] = set()
        """Names, shapes and dtypes that were found right; nothing else of plain arrays is looked at."""
        self.optional = optional
        self.fixed = dict(fixed)

    @classmethod
    def of_session(cls, session: Any) -> FeedChecker:
        """A checker for a file of fx2onnx that another engine's session holds: each name of a dim is one size."""
        args = [
            NodeArg(arg.name, arg.type, arg.shape, TensorType(_DTYPES[arg.type]), list(arg.shape))
            for arg in session.get_inputs()
            if arg.type in _DTYPES
        ]
        return cls(args, frozenset(), {}, says_sizes=True)

    def check(self, feeds: Mapping[str, Any]) -> dict[str, Value]:
        """The feeds as arrays.

        Raises: UserError E401 for a name, dtype, rank or dim that does not fit.
        """
        given = tuple(
            [
                (name, value.shape, value.dtype)
                for name, value in (feeds.items() if type(feeds) is dict else ())
                if type(value) is np.ndarray and value.flags.c_contiguous and value.flags.aligned
            ]
        )
        if given in self.accepted and len(given) == len(feeds):
            return dict(feeds)
        arrays = self._checked(feeds)
        is_plain = len(given) == len(feeds) and all(arrays[name] is feeds[name] for name in feeds)
        if is_plain and len(self.accepted) < MAX_ACCEPTED:
            self.accepted.add(given)
        return arrays

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Value]:
        if not isinstance(feeds, Mapping):
            raise UserError("E401", f"feeds must be a dict of name -> array, not {type(feeds).__name__}")
        for name in feeds:
            if name not in self.args:
                close = difflib.get_close_matches(str(name), self.args, 1)
                raise UserError(
                    "E401",
                    f"the model has no input {name!r}",
                    why=f"its inputs are {listed(map(repr, self.args)) or 'none'}",
                    next=f"did you mean {close[0]!r}?" if close else (),
                )
        missing = [name for name in self.args if name not in feeds and name not in self.optional]
        if missing:
            raise UserError(
                "E401",
                f"no feed for the input{'s' if len(missing) > 1 else ''} {listed(map(repr, missing))}",
                why=listed((f"{name}: {self._wanted(self.args[name])}" for name in missing), "; "),
                next=f"pass {listed(f'{name}=...' for name in missing)} in the feeds",
            )
        bound: dict[str, tuple[int, str]] = {
            dim: (size, "free_dimension_overrides") for dim, size in self.fixed.items()
        }
        arrays = {name: self._check_one(self.args[name], value, bound) for name, value in feeds.items()}
        if self.conditions:
            self._check_conditions(bound)
        if self.expressions:
            self._check_expressions(bound)
        return arrays

    def _check_expressions(self, bound: Mapping[str, tuple[int, str]]) -> None:
        """Raises UserError E401 for a size that is not what its expression is at the sizes of the others."""
        from fx2onnx.sizes.text import size_of

        sizes = {name: size for name, (size, _) in bound.items()}
        for text in self.expressions.keys() & sizes.keys():
            wanted = size_of(self.expressions[text], sizes)
            if wanted is not None and wanted != sizes[text]:
                known = {name: size for name, size in sizes.items() if name in self.expressions[text].symbols()}
                raise UserError(
                    "E401",
                    f"{bound[text][1]} is {sizes[text]}; the model needs {text}, which is {wanted}",
                    why=", ".join(f"{name} is {size}, {bound[name][1]}" for name, size in known.items()),
                    next=f"feed {wanted} there, or other sizes",
                )

    def _check_conditions(self, bound: Mapping[str, tuple[int, str]]) -> None:
        """Raises UserError E401 for sizes that the file is not right for."""
        from fx2onnx.sizes.stated import check_sizes

        bound = {**bound, **self._roots(bound)}
        sizes = {name: size for name, (size, _) in bound.items()}
        check_sizes("the model", self.conditions, sizes, {name: place for name, (_, place) in bound.items()})

    def _warn(self, name: str, what: str) -> None:
        """Say once a session that a name of the model stands for two sizes."""
        if name not in self.warned:
            self.warned.add(name)
            why = "other exporters have one name for sizes that differ, so it runs, as in onnxruntime"
            logger.warning("%s; %s; the config entry %r refuses it", what, why, REFUSE_TWO_SIZES)

    def _roots(self, bound: Mapping[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
        """The sizes that stand in the shapes only in others, such as ``n`` in ``2*n + 1``."""
        from fx2onnx.sizes.text import root_of

        found: dict[str, tuple[int, str]] = {}
        for text, (size, place) in bound.items():
            root = None if text.isidentifier() else root_of(text)
            if root is not None and root.name not in bound:
                found[root.name] = root.size(size), f"{place} is {text}"
        return found

    def _wanted(self, arg: NodeArg) -> str:
        return f"{arg.type} {arg.shape}"

    def _check_one(self, arg: NodeArg, value: Any, bound: dict[str, tuple[int, str]]) -> Value:
        if is_tensor_type(arg.value_type):
            return self._check_tensor(arg, value, arg.value_type, bound)
        return self._check_nested(arg, value, arg.value_type, bound, f"the feed {arg.name!r}")

    def _check_nested(
        self, arg: NodeArg, value: Any, type_: Any, bound: dict[str, tuple[int, str]], what: str
    ) -> Value:
        """A value of any type; ``what`` says which part of the feed it is."""
        if isinstance(type_, OptionalType):
            return None if value is None else self._check_nested(arg, value, type_.elem_type, bound, what)
        if isinstance(type_, SequenceType):
            if not isinstance(value, (list, tuple)):
                raise self._wrong_kind(arg, value, type_, what, "a list")
            inner = type_.elem_type
            return [self._check_nested(arg, item, inner, {}, f"item {n} of {what}") for n, item in enumerate(value)]
        if isinstance(type_, MapType):
            if not isinstance(value, Mapping):
                raise self._wrong_kind(arg, value, type_, what, "a dict")
            return {
                self._check_key(key, type_, what): self._check_element(arg, item, type_, f"{key!r} of {what}")
                for key, item in value.items()
            }
        if is_tensor_type(type_):
            item_arg = NodeArg(arg.name, type_name(type_), arg.shape, type_, arg.dims)
            return self._check_tensor(item_arg, value, type_, bound, what)
        return value

    def _wrong_kind(self, arg: NodeArg, value: Any, type_: Any, what: str, wanted: str) -> UserError:
        why = f"the model needs {self._wanted(arg)}"
        return UserError("E401", f"{what} is {describe(value)}, not {wanted}", why=why, next=f"pass {wanted} there")

    def _check_key(self, key: Any, type_: MapType, what: str) -> Any:
        is_text = type_.key_dtype is DataType.STRING
        if isinstance(key, str) if is_text else isinstance(key, (int, np.integer)) and not isinstance(key, bool):
            return key if is_text else int(key)
        wanted = "strings" if is_text else "integers"
        raise UserError("E401", f"the key {key!r} of {what} is a {type(key).__name__}", why=f"its keys are {wanted}")

    def _check_element(self, arg: NodeArg, value: Any, type_: MapType, what: str) -> Any:
        """A value of a map: a Python number or string where the type is a tensor, as onnxruntime has it."""
        inner = type_.value_type
        if not is_tensor_type(inner):
            return self._check_nested(arg, value, inner, {}, what)
        free = NodeArg(arg.name, type_name(inner), [], inner)
        array = self._check_tensor(free, value, inner, {}, what)
        return array.item() if array.ndim == 0 else array

    def _check_tensor(
        self, arg: NodeArg, value: Any, type_: Any, bound: dict[str, tuple[int, str]], what: str = ""
    ) -> Any:
        what = what or f"the feed {arg.name!r}"
        if type(value) is not np.ndarray:
            if isinstance(value, np.ndarray):
                value = np.asarray(value)  # a matrix, for one, has another product
            elif hasattr(value, "numpy"):
                value = self._taken_out(arg, value, what)
            if not isinstance(value, (np.ndarray, np.generic)):
                value = self._converted(arg, value, type_.dtype, what)
            value = as_value(value)
        array = self._check_dtype(arg, value, type_.dtype, what)
        self._check_dims(arg, array, bound, what)
        return array

    def _taken_out(self, arg: NodeArg, value: Any, what: str) -> Any:
        """The array of a tensor of another library."""
        try:
            return value.numpy()
        except (RuntimeError, TypeError) as error:
            next_step = f'pass feeds["{arg.name}"].detach().cpu().numpy()'
            raise UserError("E401", f"{what} gives no array", why=str(error)[:200], next=next_step) from error

    def _converted(self, arg: NodeArg, value: Any, dtype: DataType, what: str) -> Any:
        """Python numbers and lists, as onnxruntime takes them."""
        if isinstance(value, (bool, int, float, str, bytes, list, tuple)):
            try:
                if dtype is DataType.STRING:
                    loose = np.array(value, dtype=object)
                    return string_array(loose.ravel().tolist(), loose.shape)
                return np.array(value, dtype=dtype.numpy())
            except (ValueError, TypeError, OverflowError) as error:
                raise UserError("E401", f"{what} is not {arg.type}", why=str(error)) from error
        raise UserError(
            "E401",
            f"{what} is a {type(value).__name__}, not an array",
            why=f"the model needs {self._wanted(arg)}",
            next="pass a numpy.ndarray",
        )

    def _check_dtype(self, arg: NodeArg, array: Any, wanted: DataType, what: str) -> Any:
        given = onnx_dtype(array.dtype)
        if given is wanted:
            if given is DataType.STRING:
                items = array.ravel().tolist()
                if not all(issubclass(kind, (str, bytes)) for kind in set(map(type, items))):
                    raise UserError("E401", f"{what} holds objects that are not strings")
                return string_array(items, array.shape)
            if array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative:
                return array
            return np.array(array, array.dtype.newbyteorder("="), order="C")  # how a sum is cut depends on strides
        name = TENSOR_NAMES[given] if given is not None else str(array.dtype)
        numpy_name = np.dtype(wanted.numpy()).name if wanted is not DataType.STRING else "object"
        raise UserError(
            "E401",
            f"{what} is tensor({name}); the model needs {arg.type}",
            next=f'feeds["{arg.name}"].astype("{numpy_name}")',
        )

    def _check_dims(self, arg: NodeArg, array: Any, bound: dict[str, tuple[int, str]], what: str) -> None:
        shape = arg.dims
        if shape is None:
            return
        given = list(array.shape)
        if len(given) != len(shape):
            step = "feed an array with the same number of axes"
            if (axis := _lacking(given, shape)) is not None:
                step = f'add an axis: feeds["{arg.name}"][{":, " * axis}None]'
            raise UserError(
                "E401",
                f"{what} has {len(given)} axes; the model needs {len(shape)}",
                why=f"given {given}, needed {shape}",
                next=step,
            )
        for axis, (size, wanted) in enumerate(zip(given, shape, strict=True)):
            if isinstance(wanted, int):
                if size != wanted:
                    raise UserError(
                        "E401",
                        f"dim {axis} of {what} is {size}; the model needs {wanted}",
                        why=f"given {given}, needed {shape}",
                        next=f"feed {wanted} there, or export the model with that dim dynamic",
                    )
            elif wanted:
                earlier = bound.setdefault(wanted, (size, f"dim {axis} of {arg.name!r}"))
                if earlier[0] != size:
                    error = UserError(
                        "E401",
                        f"dim {axis} of {what} is {size}, but {wanted!r} is {earlier[0]}",
                        why=f"{wanted!r} was bound by {earlier[1]}; given {given}, needed {shape}",
                        next=f"feed the same size for {wanted!r} everywhere",
                    )
                    if self.refuses_two_sizes or wanted in self.fixed:
                        raise error
                    self._warn(wanted, error.what)


def _lacking(given: Sequence[int], shape: Sequence[Any]) -> int | None:
    """The axis of size 1 or of any size without which ``shape`` is that of an array of the sizes ``given``."""
    if len(given) + 1 != len(shape):
        return None
    for axis, size in enumerate(shape):
        others = zip(given, [*shape[:axis], *shape[axis + 1 :]], strict=True)
        if (size == 1 or not isinstance(size, int)) and all(
            one == other or not isinstance(other, int) for one, other in others
        ):
            return axis
    return None


def fix_denoted(program: Program, graph: Any, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """Fix the dims of the graph's inputs that carry a denotation; returns ``fixed`` with the names of those dims added."""
    result = dict(fixed)
    denoted = {info.name: denotations_of(info.type) for info in graph.input}
    for index in program.inputs:
        slot = program.slots[index]
        dims = list(slot.shape or ())
        for axis, denotation in enumerate(denoted.get(slot.name, ())):
            if denotation in sizes and axis < len(dims) and not isinstance(dims[axis], int):
                name, dims[axis] = dims[axis], sizes[denotation]
                if isinstance(name, str):
                    result[name] = sizes[denotation]
        if slot.shape is not None:
            slot.shape = tuple(dims)
    return result
