"""One graph in one of the engines, the checks of its inputs, and values that stay the engine's own from step to step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.base.errors import UserError, onnxruntime_errors
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.judge.engines import Array, from_ort_value, open_session, to_ort_value
from fx2onnx.manifest.form import FIXED, CacheState, GraphForm, Port
from fx2onnx.manifest.names import BATCH, CAPACITY, PAGES
from fx2onnx.sizes.stated import SizeCondition, check_sizes
from fx2onnx.sizes.text import Root, root_of

_WHOLE = "iub"
TOKENIZE = 'AutoTokenizer.from_pretrained(FOLDER)(text, return_tensors="np") of transformers makes token ids of a text'


def cast(name: str, value: Any, onnx_type: str) -> Array:
    """``value`` as the graph's input ``name`` takes it. Raises UserError E401 where numbers would be lost."""
    try:
        array = np.asarray(value)
    except ValueError as cause:
        raise UserError("E401", f"{name} is no array", why=str(cause)) from cause
    wanted = np.dtype(dtype_of(onnx_type))
    loses = wanted.kind in _WHOLE and array.dtype.kind not in _WHOLE and not _is_whole(array)
    if array.dtype.kind in "OUSMm" or loses:
        is_text = array.dtype.kind in "OU" and wanted.kind in _WHOLE
        raise UserError("E401", f"{name} is {array.dtype}, the model takes {wanted}", next=TOKENIZE if is_text else ())
    return array.astype(wanted, copy=False)


def _is_whole(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isfinite(array).all() and (array == np.trunc(array)).all())


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> None:
    """Raises UserError E401 where a feed is missing or does not fit the graph's shape or another feed."""
    missing = [name for name in graph.inputs if name not in feeds and name not in graph.optional]
    if missing:
        raise UserError("E401", f"{graph.path.name} needs {missing[0]}", why=_takes(graph), next=_inspect(graph))
    bound: dict[str, tuple[int, str]] = {}
    for name, arg in graph.inputs.items():
        if name not in feeds or name in graph.optional:
            continue
        given = shape_of(feeds[name])
        sizes_differ = any(
            isinstance(wanted, int) and size != wanted for size, wanted in zip(given, arg.shape, strict=False)
        )
        if len(given) != len(arg.shape) or sizes_differ:
            step = f"give {name} as {list(arg.shape)}"
            raise UserError("E401", f"{name} is {list(given)}, {graph.path.name} takes {list(arg.shape)}", next=step)
        for axis, (size, wanted) in enumerate(zip(given, arg.shape, strict=True)):
            if not isinstance(wanted, str) or not wanted.isidentifier():
                continue
            first, place = bound.setdefault(wanted, (size, f"axis {axis} of {name}"))
            if first != size:
                raise UserError(
                    "E401",
                    f"{wanted} has two sizes",
                    why=f"{first} at {place}, {size} at axis {axis} of {name}",
                    next="give arrays with the same size there",
                )


def check_known(graph: Graph, names: Collection[str], next: str = "") -> None:
    """Raises UserError E401 for a name that is no input of ``graph``."""
    unknown = [name for name in names if name not in graph.inputs]
    if unknown:
        raise UserError(
            "E401", f"{graph.path.name} has no input {unknown[0]!r}", why=_takes(graph), next=next or _inspect(graph)
        )


def _inspect(graph: Graph) -> str:
    return f"fx2onnx inspect {graph.path} prints the inputs"


def _takes(graph: Graph) -> str:
    return f"its inputs: {', '.join(port.name for port in graph.form.inputs if port.role != 'adapter')}"


_DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(bfloat16)": ml_dtypes.bfloat16, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8,
    "tensor(float8e4m3fn)": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


class Graph:
    """One ONNX file, opened. Values are arrays or the engine's ``OrtValue``; the latter are handed on without a copy."""

    def __init__(self, form: GraphForm, path: Path, engine: str, file: Path) -> None:
        """``file`` is what is opened, where that is not (yet) called ``path``."""
        self.form = form
        self.path = path
        self._session = open_session(engine, str(file))
        self._is_runner = engine == "runner"
        defaults = {arg.name: arg for arg in self._session.get_overridable_initializers()}
        self.inputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_inputs()} | defaults
        self.optional = frozenset(defaults)
        self.outputs: dict[str, Any] = {arg.name: arg for arg in self._session.get_outputs()}
        self.past = {state.input: state for state in form.cache if state.input is not None}
        self.present = {state.output: state for state in form.cache if state.output is not None}
        self._windows = [
            (name, state.axis, state.window)
            for name, state in self.present.items()
            if state.axis is not None and state.window is not None
        ]
        self.names_of_past = {state.name: name for name, state in self.past.items()}
        self._conditions = form.size_conditions()
        self._places = _places(self.inputs, self._conditions)
        self._check(self.inputs, form.inputs, self.past, has_shapes=True)
        # An engine may know more of an output's shape than the file says.
        self._check(self.outputs, form.outputs, self.present, has_shapes=False)

    def _check(
        self, args: Mapping[str, Any], ports: Sequence[Port], cache: Mapping[str, CacheState], *, has_shapes: bool
    ) -> None:
        """Raises UserError E302 where the file is not what the manifest says."""
        stated: dict[str, Port | CacheState] = {port.name: port for port in ports}
        stated |= cache
        for name in {**stated, **args}:
            arg, port = args.get(name), stated.get(name)
            compares_sizes = has_shapes and name not in self.optional  # engines have those of the default
            found = arg and [np.dtype(dtype_of(arg.type)).name, *map(str, arg.shape if compares_sizes else ())]
            expected = port and [port.dtype, *map(str, port.shape if compares_sizes else ())]
            if found != expected:
                raise UserError(
                    "E302",
                    f"'{self.path}' is not what {MANIFEST} says",
                    why=f"{name} is {found or 'missing'} in the graph, {expected or 'missing'} in {MANIFEST}",
                    next="export the folder again",
                )

    def feeds(self, by_role: Mapping[str, Any], by_name: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of ``run``, from the values of roles, and of other inputs and of the cache by name.

        Raises:   UserError E401 where one is missing.
        """
        try:
            plain = {
                port.name: by_role[port.role] if port.role in by_role else by_name[port.name]
                for port in self.form.inputs
                if port.name in by_name or port.name not in self.optional
            }
            return plain | {name: by_name[name] for name in self.past}
        except KeyError as missing:
            raise UserError("E401", f"{self.path.name} needs {missing.args[0]}") from missing

    def following(self, outputs: Mapping[str, Any], taker: Graph) -> dict[str, Any]:
        """The cache among ``outputs``, as inputs of the next call, which is one of ``taker``."""
        names = taker.names_of_past
        return {
            names[state.name]: outputs[name]
            for name, state in self.present.items()
            if state.name in names and name in outputs
        }

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Every output by name, as the engine's values. ``feeds`` are arrays or such values.

        Raises:   UserError E401 for sizes that the graph is not right for.
        """
        if self._conditions:
            sizes = {name: root.size(shape_of(feeds[of])[axis]) for name, (of, axis, root) in self._places.items()}
            places = {name: f"axis {axis} of {of}" for name, (of, axis, _) in self._places.items()}
            check_sizes(self.path.name, self._conditions, sizes, places)
        values = {name: self.value(name, feed) for name, feed in feeds.items()}
        if self.form.has_fixed_cache and hasattr(self._session, "io_binding"):
            return self._run_in_place(values)
        with onnxruntime_errors():
            found = self._session.run_with_ort_values(list(self.outputs), values)
        outputs = dict(zip(self.outputs, found, strict=True))
        for name, axis, window in self._windows:
            outputs[name] = self._shown(outputs[name], axis, window, self.outputs[name].type)
        return outputs

    def _shown(self, value: Any, axis: int, window: int, onnx_type: str) -> Any:
        """The last ``window`` entries, where there are more."""
        hidden = shape_of(value)[axis] - window
        if hidden <= 0:
            return value
        return self._to_value(np.split(as_array(value), [hidden], axis)[1], onnx_type)

    def _run_in_place(self, values: Mapping[str, Any]) -> dict[str, Any]:
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        pasts = {state.output: state.input for state in self.form.cache if state.length in FIXED}
        kept = {name: values[past] for name in self.outputs if (past := pasts.get(name) or "") in values}
        for name in self.outputs:
            if name in kept:
                binding.bind_ortvalue_output(name, kept[name])
            else:
                binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        # a value that get_outputs makes of memory of NumPy does not own it: the value that was bound does
        return dict(zip(self.outputs, binding.get_outputs(), strict=True)) | kept

    def value(self, name: str, feed: Any) -> Any:
        """``feed`` as the engine's value for the input ``name``."""
        if not isinstance(feed, np.ndarray):
            return feed
        return self._to_value(feed, self.inputs[name].type)

    def _to_value(self, array: Array, onnx_type: str) -> Any:
        if not self._is_runner:
            return to_ort_value(array, onnx_type)
        from fx2onnx.runner import OrtValue

        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))

    def rows(self, states: Mapping[str, Any], places: Array) -> dict[str, Any]:
        """The cache of some rows, each state along its axis of the batch."""
        found = dict(states)
        for name, state in self.past.items():
            if name in found and state.length == "pages":  # in the order of the rows, as in ``table``
                pages = as_array(found[name])
                moved = pages.reshape(len(places), -1, *pages.shape[1:])[places].reshape(pages.shape)
                found[name] = self.value(name, moved)
            elif name in found and BATCH in state.shape:
                found[name] = self.value(name, np.take(as_array(found[name]), places, axis=state.shape.index(BATCH)))
        return found

    def table(self, states: Mapping[str, Any], rows: int) -> Array:
        """The pages of each row in a cache that ``empty`` made."""
        pages = (shape_of(states[name])[0] for name, state in self.past.items() if state.length == "pages")
        return np.arange(next(pages, 0)).reshape(rows, -1)

    def empty(self, batch: int, capacity: int = 0) -> dict[str, Any]:
        """The cache before the first token, as the engine's own values; one of fixed size has room for ``capacity`` tokens."""
        sizes = {BATCH: batch, CAPACITY: capacity}
        found = {}
        for name, state in self.past.items():
            if state.length == "pages":
                sizes[PAGES] = batch * -(-capacity // int(state.shape[1]))
            shape = [size if isinstance(size, int) else sizes.get(size, 0) for size in state.shape]
            found[name] = self.value(name, np.full(shape, state.initial, dtype_of(self.inputs[name].type)))
        return found


def _places(inputs: Mapping[str, Any], conditions: Iterable[SizeCondition]) -> dict[str, tuple[str, int, Root]]:
    """For each size in a condition, an input and the axis that gives the size, by itself or as a multiple."""
    wanted = frozenset[str]().union(*(condition.names for condition in conditions))
    found: dict[str, tuple[str, int, Root]] = {}
    for name, arg in inputs.items() if wanted else ():
        for axis, size in enumerate(arg.shape):
            root = root_of(size) if isinstance(size, str) else None
            if root is not None and root.name in wanted and (root.name not in found or size == root.name):
                found[root.name] = name, axis, root
    return found


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array or of an engine's own value."""
    return tuple(value.shape() if callable(value.shape) else value.shape)


def dtype_of(onnx_type: str) -> Any:
    """The NumPy dtype of ``tensor(float)`` and the like. Raises UserError E401 for a type that no tensor has."""
    if onnx_type not in _DTYPES:
        raise UserError("E401", f"values of type {onnx_type} cannot be handed over")
    return _DTYPES[onnx_type]


def as_array(value: Any) -> Array:
    """An engine's value as an array."""
    from fx2onnx.runner import OrtValue

    array: Array = value.numpy() if isinstance(value, OrtValue) else from_ort_value(value)
    return array
