"""``locate(..., dump=)``: the first value of a device's dump that does not follow from those before it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.base.notices import warn
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.irx.names import source_of
from fx2onnx.judge.arrays import read_npz
from fx2onnx.judge.engines import Array, lacks_operator
from fx2onnx.judge.tolerance import Grain
from fx2onnx.precision.options import EPSILONS, LEAST_NORMAL
from fx2onnx.verify.eager import as_array
from fx2onnx.verify.interface import assign
from fx2onnx.verify.locating.blame import AGREES
from fx2onnx.verify.locating.first_wrong import FirstWrong, NodeDifference, difference
from fx2onnx.verify.locating.program import OnnxFile
from fx2onnx.verify.locating.side_by_side import case_of, run_cut


def read_dump(place: Any, file: OnnxFile) -> dict[str, Array]:
    """The arrays of a folder of .npy files, of a .npz file, or of a mapping, by the values of the file that they are.

    A name is that of a value or, of its first output, of a node; characters other than letters and digits count as ``_``.
    Raises: UserError E302 for what cannot be read, E401 where no name is one of the file's.
    """
    arrays = _arrays(place)
    names: dict[str, str | None] = {}
    values = [*file.inputs, *(name for node in file.nodes for name in node.output if name)]
    pairs = [*((name, name) for name in values), *((node.name, node.output[0]) for node in file.nodes if node.output)]
    for name, value in pairs:
        key = _plain(name)
        names[key] = value if names.get(key, value) == value else None  # two values whose names look alike
    found = {name: arrays[name] for name in values if name in arrays}
    unknown = []
    for name, array in arrays.items():
        match = names.get(_plain(name))
        if match is not None:
            found.setdefault(match, array)
        elif name not in found:
            unknown.append(name)
    if not found:
        raise UserError(
            "E401",
            "no array of the dump is a value of the file",
            why=f"the dump has {', '.join(sorted(arrays)[:3]) or 'no arrays'}, the file {', '.join(values[:3])}",
            next="name each array as the value or the node of the file: NAME.npy",
        )
    if unknown:
        told = f"{', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}"
        warn([f"{len(unknown)} of {len(arrays)} arrays of the dump are no value of the file, and not compared: {told}"])
    return found


def _arrays(place: Any) -> Mapping[str, Array]:
    if isinstance(place, Mapping):
        return {str(name): np.asarray(array) for name, array in place.items()}
    if not os.path.isdir(place):
        return read_npz(place)
    found = {}
    for path in sorted(Path(place).rglob("*.npy")):
        try:
            found[path.relative_to(place).with_suffix("").as_posix()] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as cause:
            raise UserError("E302", f"cannot read '{path}' as a .npy array", why=first_line(cause)) from cause
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")


def in_dump(place: Any, file: OnnxFile, arguments: Arguments, bake: Sequence[str], engine: str) -> FirstWrong | None:
    """The first value of the dump that ``engine`` does not compute from the values before it; None where each follows.

    Raises: UserError E302, E401, and E403 where the engine fails on the values of the dump.
    """
    dump = read_dump(place, file)
    taken = assign([leaf.name for leaf in arguments.leaves], file.inputs, bake)
    feeds = {
        name: as_array(leaf.tensor) for name, leaf in zip(taken, arguments.leaves, strict=True) if name is not None
    }
    known = {**feeds, **{name: _as_in_file(name, array, file) for name, array in dump.items()}}
    for name in _in_order(file, dump):
        nodes = file.segment([name], known.keys() - {name})
        if any(file.may_draw(index) for index in nodes):
            continue
        read = {each for index in nodes for each in (*file.nodes[index].input, *file.nodes[index].output)}
        given = {each: known[each] for each in known.keys() & read - {name}}
        try:
            want = run_cut(file, file.cut(nodes, given, [name]), given, engine)[name]
        except Exception as cause:  # each engine has classes of its own
            if lacks_operator(cause):
                continue
            raise UserError(
                "E403", f"{engine} cannot compute {name!r} from the values of the dump", why=first_line(cause)[:300]
            ) from cause
        found = _beside(dump[name], np.asarray(want))
        if found.is_wrong:
            assumed = [each for each in given if each in feeds and each not in dump]
            return _report(file, nodes, name, found, given, np.asarray(want), engine, assumed)
    return None


def _as_in_file(name: str, array: Array, file: OnnxFile) -> Array:
    """Floats of a device in the dtype that the file has for them."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return array
    return array.astype(file.float_dtypes.get(name, np.float32), copy=False)


def _in_order(file: OnnxFile, dump: Mapping[str, Array]) -> Iterator[str]:
    return (name for node in file.nodes for name in node.output if name in dump)


def _beside(got: Array, want: Array) -> NodeDifference:
    """The device's value beside the one that follows; a device that computes in 16 bits rounds so."""
    grain = Grain(EPSILONS.get(got.dtype.name, 0.0), LEAST_NORMAL.get(got.dtype.name, 0.0))
    is_narrow = (
        got.dtype.name in ("float16", "bfloat16", "float64") and want.dtype.kind == "f" and got.dtype != want.dtype
    )
    return difference(got.astype(want.dtype) if is_narrow else got, want, grain=grain)


def _report(
    file: OnnxFile,
    nodes: list[int],
    name: str,
    found: NodeDifference,
    given: Mapping[str, Array],
    want: Array,
    engine: str,
    assumed: Sequence[str],
) -> FirstWrong:
    made_by = [file.nodes[index] for index in nodes]
    places = [source_of({each.key: each.value for each in node.metadata_props}) for node in made_by]
    lines = ", ".join(dict.fromkeys(filter(None, places)))
    told = f"   ({lines})" if lines else ""
    if assumed:
        told += f"; or the device ran on other inputs: the dump has no {', '.join(assumed)}"
    return FirstWrong(
        "engine",
        tuple(node.name or node.output[0] for node in made_by),
        name,
        None,
        "",
        (),
        found,
        "the device",
        f"{engine} computes another value from the device's own values before it{told}",
        want.shape,
        str(want.dtype),
        tuple(node.op_type for node in made_by),
        {"dump": found.describe(), engine: AGREES},
        case_of(file, nodes, given, name, want),
    )
