"""Arguments of forward: binding, flattening, names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import GeneratorType
from typing import TypeAlias, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence

from fx2onnx.base.cache_names import cache_name
from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import storable
from fx2onnx.base.signatures import signature_of
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.within import tensors_within
from fx2onnx.capture.rare_roads import road
from fx2onnx.sizes.expr import DimLike
from fx2onnx.torchcompat.pytrees import Key, Rebuild, flatten, is_built_otherwise, is_object, is_structure

T = TypeVar("T")
Call: TypeAlias = tuple[tuple[object, ...], dict[str, object]]
"""``(args, kwargs)`` of a call."""


ARGUMENT = "@"
"""With it the names of ``held_names`` begin that are those of arguments, as no attribute's does."""
_IMMEDIATE = (bool, int, float, str, type(None), torch.dtype, torch.device)
_WORDS = {"builtin_function_or_method": "method"}
HELD = -1
"""The position of what is put into modules and objects before they run, rather than handed to forward."""


@dataclass(slots=True)
class Leaf:
    """One tensor among the arguments."""

    name: str
    keys: tuple[Key, ...]
    """Argument name and the keys inside the argument."""
    tensor: torch.Tensor
    position: int
    """Index among all flat leaves; ``HELD`` where a module or an object holds it, under this name."""
    place: str = ""
    """The object or module that holds the tensor, by the name of ``held_names``; a tensor that is held twice is two
    leaves."""
    axes: dict[int, DimLike] = field(default_factory=dict)
    """Dynamic axes and their sizes, as symbols or expressions over symbols."""

    @property
    def path(self) -> str:
        """The path of the leaf, such as ``ids`` or ``past[0][1]``, ``state.h`` in an object."""
        if self.place:
            return self.place.removeprefix(ARGUMENT)
        return _path(self.keys)


def _path(keys: Sequence[Key]) -> str:
    return str(keys[0]) + "".join(f"[{key!r}]" for key in keys[1:])


@dataclass(slots=True)
class Arguments:
    """Flat arguments of one call, the tensors among them named."""

    flat: list[object]
    leaves: list[Leaf]
    values: dict[str, object]
    """The arguments by name; those of ``*args`` as ``args_0``, ``args_1``."""
    rebuild: Rebuild
    named: list[tuple[str, object]] = field(default_factory=list)
    """``flat`` with the names that ``held_names`` has for them."""
    ends: tuple[str, ...] = ()
    """Names of leaves whose values afterwards belong to what a run gives, behind the results."""
    notes: list[str] = field(default_factory=list)
    """Sentences on the arguments that look like data and are constant in the file."""
    variadic: str = ""
    """The name of forward's ``*args``."""

    def names(self) -> list[str]:
        """The names of the tensors, in their order."""
        return [leaf.name for leaf in self.leaves]

    def objects(self) -> list[tuple[str, object]]:
        """The arguments of forward that are no tensors, by name."""
        return [(name, value) for name, value in self.named if not isinstance(value, torch.Tensor)]

    def held(self, values: Sequence[T]) -> dict[str, T]:
        """The ``values``, one for each leaf, that are put into modules and objects, by name."""
        return {leaf.place: value for leaf, value in zip(self.leaves, values, strict=True) if leaf.place}

    def name_of(self, place: str) -> str:
        """The name in ``held_names`` of a place, as an input or output is called; empty where no argument holds it."""
        if not place.startswith(ARGUMENT):
            return ""
        known = next((leaf.name for leaf in self.leaves if place == leaf.place), "")
        return known or _held_name(place, dict(self.objects()))

    def rebuilt(self, replacements: Sequence[object]) -> Call:
        """``(args, kwargs)`` with the tensors replaced, in order of ``leaves``."""
        flat = list(self.flat)
        for leaf, value in zip(self.leaves, replacements, strict=True):
            if leaf.position != HELD:
                flat[leaf.position] = value
        args, kwargs = self.rebuild(flat)
        return tuple(args), kwargs


def normalise_args(module: torch.nn.Module, args: object, kwargs: Mapping[str, object] | None) -> Call:
    """``args`` as torch.onnx.export takes it (a tensor, a tuple, a dict of keywords), on the module's device.

    A dict that ends a tuple has keywords, too, where forward has parameters of these names that the others leave.
    """
    named = dict(kwargs or {})
    if isinstance(args, Mapping) and not named:
        return beside_weights(module, (), dict(args))
    if isinstance(args, torch.Tensor) or not isinstance(args, tuple | list):
        return beside_weights(module, (args,), named)
    if not named and args and isinstance(args[-1], dict) and _has_keywords(module.forward, args):
        return beside_weights(module, tuple(args[:-1]), dict(args[-1]))
    return beside_weights(module, tuple(args), named)


def _has_keywords(forward: Callable[..., object], args: Sequence[object]) -> bool:
    """Return whether the last of ``args``, a dict, fits as keywords; an empty one says that there are none."""
    last = args[-1]
    assert isinstance(last, dict)
    signature = signature_of(forward)
    return signature is not None and last.keys() <= signature.parameters.keys() and fits(forward, args[:-1], last)


def fits(forward: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether ``forward(*args, **kwargs)`` is a call that its signature allows."""
    signature = signature_of(forward)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def bind(
    forward: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    input_names: Sequence[str] | None,
    *,
    is_leaf: Callable[[object], bool] = is_object,
    needs_numbers: bool = False,
) -> Arguments:
    """Check the call against the signature and flatten it. Structures of which ``is_leaf`` is true are objects, whose tensors are put
    into them before a run.

    Raises: UserError E101 where the arguments do not fit, E001 where ``input_names`` is no list of different names or where a tensor has none of the
        numbers that are needed, E107 for arguments that no file has: sparse, nested and quantized tensors, packed sequences, generators.
    """
    signature = signature_of(forward)
    names = _argument_names(forward, signature, args, kwargs)
    found, rebuild = flatten((args, kwargs), lambda part: isinstance(part, PackedSequence) or is_leaf(part))
    paths: list[tuple[Key, ...]] = []
    for item in found:
        part, place, *inner = item.keys
        paths.append((names[int(place)] if part == 0 else place, *inner))
    for keys, item in zip(paths, found, strict=True):
        _refuse_kind(keys, item.value)
    named = [(ARGUMENT + "_".join(map(str, keys)), item.value) for keys, item in zip(paths, found, strict=True)]
    constants: dict[str, str] = {}
    held = _held_leaves(named, paths, constants)
    leaves: list[Leaf] = []
    taken: set[str] = set()
    for position, (keys, item) in enumerate(zip(paths, found, strict=True)):
        if isinstance(item.value, torch.Tensor):
            leaves.append(Leaf("_".join(map(str, keys)), keys, item.value, position))
        elif not isinstance(item.value, _IMMEDIATE):
            leaves += held.get(position, ())
            _find_constant(constants, ".".join(map(str, keys)), item.value, held.get(position, ()))
    if not leaves and "ndarray" in constants.values():
        raise road("arguments that do not fit").no_tensor(constants)
    notes = _notes_on(constants)
    for leaf in leaves:
        while leaf.name in taken:
            leaf.name += "_"
        taken.add(leaf.name)
        if leaf.place:
            _refuse_kind(leaf.keys, leaf.tensor)
        if needs_numbers:
            _refuse_meta(leaf)
    if input_names is not None:
        refuse_repeated("input_names", input_names)
        if len(input_names) > len(leaves):
            tensors = ", ".join(leaf.path for leaf in leaves) or "none"
            notes.append(
                f"input_names has {len(input_names)} names, the tensors that forward gets are {len(leaves)} ({tensors}): "
                f"{', '.join(map(str, input_names[len(leaves) :]))} have no effect; weights keep their names in the module"
            )
        for leaf, name in zip(leaves, input_names, strict=False):
            leaf.name = name
    values = dict(zip(names, args, strict=True)) | kwargs
    parameters = {} if signature is None else signature.parameters
    variadic = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), "")
    return Arguments([item.value for item in found], leaves, values, rebuild, named, notes=notes, variadic=variadic)


def _notes_on(constants: Mapping[str, str]) -> list[str]:
    return [
        f"the argument {name} is a {kind}: what it holds is constant in the file; pass tensors, or dicts, tuples, lists, "
        "dataclasses and plain objects of them"
        for name, kind in constants.items()
    ]


def _refuse_meta(leaf: Leaf) -> None:
    if leaf.tensor.is_meta:
        raise UserError(
            "E001",
            f"the input {leaf.path} is on the meta device",
            why="it has sizes, and no numbers to compute with",
            next=f"pass numbers: torch.rand_like({leaf.path}, device='cpu')",
        )


def _find_constant(constants: dict[str, str], name: str, value: object, inputs: Iterable[Leaf]) -> None:
    """Add the argument ``name`` where it leads to a tensor that is none of its ``inputs``, and no part of it is there."""
    if any(known == name or known.startswith(f"{name}.") for known in constants):
        return
    own = {id(leaf.tensor) for leaf in inputs}
    parts = [*vars(value).values()] if isinstance(value, type) else value
    if any(id(tensor) not in own for tensor in tensors_within(parts)):
        constants[name] = _WORDS.get(type(value).__name__, type(value).__name__)


def _held_leaves(
    named: Sequence[tuple[str, object]], paths: Sequence[tuple[Key, ...]], constants: dict[str, str]
) -> dict[int, list[Leaf]]:
    """The tensors that objects hold, by the position of the object among all arguments. ``constants`` get the class of each part that is no input."""
    roots = {name: position for position, (name, _) in enumerate(named)}
    values = dict(named)
    leaves: dict[int, list[Leaf]] = {}
    snapshot = Snapshot((), [pair for pair in named if not isinstance(pair[1], torch.Tensor)])
    if not snapshot.entries:
        return {}
    names = snapshot.names()
    found = names.in_objects() if snapshot.tensors else {}
    constants |= {name.removeprefix(ARGUMENT): kind for name, kind in names.constants().items()}
    for place, (root, keys, tensor) in found.items():
        position = roots[root]
        path = (*paths[position], *(key if isinstance(key, str | int) else str(key) for key in keys))
        leaves.setdefault(position, []).append(Leaf(_held_name(place, values), path, tensor, HELD, place))
    return leaves


def _root(place: str, names: Iterable[str]) -> str:
    return max((name for name in names if place == name or place.startswith(f"{name}.")), key=len)


def _held_name(place: str, values: Mapping[str, object]) -> str:
    """``past_key_values.0.key``, ``state.h``; of a dataclass and of what is registered ``state_h``."""
    root = _root(place, values)
    name, words = root.removeprefix(ARGUMENT), place[len(root) + 1 :].split(".") if place != root else []
    if any(
        "Cache" in kind.__name__ and kind.__module__.startswith("transformers") for kind in type(values[root]).__mro__
    ):
        return f"{name}.{cache_name([int(word) if word.isdigit() else word for word in words])}"
    return ("_" if is_structure(values[root]) else ".").join([name, *words])


def refuse_objects(arguments: Arguments, who: str) -> None:
    """Raises UserError E107 where objects among the arguments hold tensors."""
    held = next((leaf for leaf in arguments.leaves if leaf.place), None)
    if held is not None:
        raise UserError(
            "E107",
            f"{who} takes no tensor in an object",
            why=f"{held.path} is in a {type(dict(arguments.objects())[_root(held.place, dict(arguments.named))]).__name__}",
            next="pass tensors, or dicts, tuples and lists of them",
        )


def refuse_repeated(argument: str, names: Sequence[str]) -> None:
    """Raises UserError E001 where two of ``names`` are equal, one is no text that a file can hold, or they are one text."""
    if isinstance(names, str):
        raise UserError("E001", f"{argument} is {names!a:.80}, not a list", next=f"{argument}=[{names!a:.80}]")
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise UserError(
            "E001", f"{argument} is {names!a:.80}", next=f'give a list of texts: {argument}=["first", "second"]'
        )
    seen: set[str] = set()
    for name in names:
        if name != storable(name):
            what = f"{argument} gives {name!a}, which is no text that a file can hold"
            raise UserError(
                "E001", what, why="UTF-8 has no halves of characters", next="give a name of whole characters"
            )
        if name == "":
            why = "an empty name stands for no value in an ONNX file"
            raise UserError("E001", f"{argument} gives an empty name", why=why, next="give each tensor a name")
        if name in seen:
            raise UserError("E001", f"{argument} gives {name!r} twice", next="give each tensor a name of its own")
        seen.add(name)


def _refuse_kind(keys: Sequence[Key], value: object) -> None:
    """Raises UserError E107 for a tensor that is not dense, or an object that no input can stand for."""
    path = _path(keys)
    if isinstance(value, torch.Tensor) and value.is_nested:
        what, why = "a nested tensor", "its rows have sizes of their own; inputs of an ONNX file are dense"
        steps = f"pass {path}.to_padded_tensor(0.0) and the lengths of its rows, as tensors"
    elif isinstance(value, torch.Tensor) and value.is_quantized:
        what, why = (
            "a quantized tensor",
            f"it is a {value.dtype} with scales beside it; inputs of an ONNX file are plain numbers",
        )
        steps = f"pass {path}.dequantize() and quantize it in forward, with torch.quantize_per_tensor"
    elif isinstance(value, torch.Tensor) and value.layout != torch.strided:
        kind = "a sparse tensor" if "sparse" in str(value.layout) else "not dense"
        what, why = kind, f"its layout is {value.layout}; inputs of an ONNX file are dense"
        steps = "pass the dense tensor, or its indices and values as tensors of their own"
    elif isinstance(value, PackedSequence):
        what, why = "a PackedSequence", "the lengths of its sequences are numbers on the CPU, which PyTorch runs by"
        steps = "pass the padded tensor and the lengths, and call torch.nn.utils.rnn.pack_padded_sequence in forward"
    elif isinstance(value, GeneratorType):
        what, why = "a generator", "the run that is recorded would use it up, and the next one would get nothing"
        steps = f"pass what it yields: list({path})"
    else:
        return
    raise UserError("E107", f"the input {path} is {what}", why=why, next=steps)


def _argument_names(
    forward: Callable[..., object],
    signature: inspect.Signature | None,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> list[str]:
    """The parameter name of each positional argument."""
    if signature is None:
        return [f"input_{index}" for index in range(len(args))]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as cause:
        raise road("arguments that do not fit").no_call(signature, args, kwargs, cause) from cause
    names: list[str] = []
    variadic = 0
    parameters = [p for p in signature.parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    for index in range(len(args)):
        parameter = parameters[min(index, len(parameters) - 1)]
        if parameter.kind == parameter.VAR_POSITIONAL:
            names.append(f"{parameter.name}_{variadic}")
            variadic += 1
        else:
            names.append(parameter.name)
    return names


def beside_weights(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with their tensors copied to the module's device, where it has one and none of them lies there.

    Some that lie elsewhere are meant to, such as lengths that PyTorch wants on the CPU.
    """
    leaves, rebuild = flatten((args, kwargs), is_built_otherwise)
    tensors = {id(leaf.value): leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
    places = {tensor.device for tensor in tensors.values()}
    home = None
    for tensor in chain(module.parameters(), module.buffers()) if places else ():
        if tensor.device in places or home not in (None, tensor.device):
            return args, kwargs
        home = tensor.device
    if home is None or _META in {device.type for device in (home, *places)}:
        return args, kwargs
    moved = {key: tensor.to(home) for key, tensor in tensors.items()}
    found, named = rebuild([moved.get(id(leaf.value), leaf.value) for leaf in leaves])
    return tuple(found), named


_META = "meta"
