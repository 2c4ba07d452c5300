"""``make target-kernels``: which CPU kernels each release of onnxruntime has, into fx2onnx/targets/tables/onnxruntime.json.

Each release is installed in a folder of its own and asked in a process of its own: for its kernels, which it lists itself,
for the newest opset and IR version that it opens, and for the operators that it takes apart by their function bodies, each
of which is opened once with each dtype.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

RELEASES = tuple(f"1.{minor}" for minor in range(16, 33))
NUMPY_1 = ("1.16", "1.17", "1.18")
"""Releases that were built for NumPy 1."""
TABLE = Path(__file__).parents[1] / "fx2onnx" / "targets" / "tables" / "onnxruntime.json"
DTYPES = ("float", "double", "float16", "bfloat16", "int32", "int64", "bool", "uint8", "int8")
"""The dtypes with which an operator with a function body is tried."""
OPSETS = range(11, 28)
OPEN_END = 2147483647


def held(text: str) -> str:
    """The dtype of a tensor; of sequences and optionals, that of what they hold. A map stays one."""
    if "map(" in text:
        return text
    while "(" in text:
        text = text.split("(", 1)[1].removesuffix(")")
    return text


FAILS_IN_A_RUN = {("", "LSTM"): "tensor(double)", ("", "GRU"): "tensor(double)"}
"""Kernels that are listed and say in a run that they do not take the dtype: of all of the onnx package's test models of one
node, with float64 and float16 in place of float32, these are the ones.
"""
LACKS = {f"::{op_type}": ["layout=1"] for op_type in ("GRU", "LSTM", "RNN")}
"""Attributes that its kernels refuse (targets/features.py)."""
LACKS_IN = {
    "::Clip": {"input max": "bfloat16", "input min": "bfloat16"},
    "::Resize": {"mode=cubic": "int8 int32 uint8"},
    "::ScatterElements": {
        **dict.fromkeys(("reduction=max", "reduction=min"), "bfloat16 bool string"),
        "reduction=add": "bfloat16 float16",
        "reduction=mul": "bfloat16 float16 string",
    },
    "::ScatterND": {
        **dict.fromkeys(("reduction=max", "reduction=min"), "bfloat16 bool float16 string"),
        "reduction=add": "bfloat16 float16",
        "reduction=mul": "bfloat16 float16 string",
    },
}
"""Attributes that they refuse in a run in some dtypes. Both: of all of the onnx package's test models of one node, and these in
the dtypes that the kernels list, in onnxruntime 1.22, 1.31 and 1.32."""
DOMAINS = ("", "ai.onnx.ml", "com.microsoft")

ASK = """
import json, pickle, sys
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as state
onnxruntime.set_default_logger_severity(4)
rows = [[k.domain, k.op_name, *k.version_range, k.type_constraints] for k in state.get_all_opkernel_def()]
problems = []
for model in pickle.load(sys.stdin.buffer):
    try:
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        problems.append("")
    except Exception as cause:  # each release has classes of its own
        problems.append(str(cause)[:200])
print(json.dumps({"version": onnxruntime.__version__, "kernels": rows, "problems": problems}))
"""


def single_node(schema: Any, dtype: str, opset: int) -> bytes | None:
    """A model of one node whose first type parameter is ``dtype``; None where that takes more than types."""
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    first = (schema.inputs or schema.outputs)[0].type_str
    bound: dict[str, str] = {}
    for name, types in allowed.items():
        wanted = (dtype,) if name == first else ("float", "int64", "bool")
        bound[name] = next((word for word in wanted if f"tensor({word})" in types), "")

    def typed(name: str, type_text: str) -> Any:
        word = bound.get(type_text, type_text.removeprefix("tensor(").removesuffix(")"))
        code = getattr(onnx.TensorProto, word.upper(), None)
        return None if code is None else helper.make_tensor_value_info(name, code, None)

    inputs = [typed(f"x{index}", each.type_str) for index, each in enumerate(schema.inputs[: schema.min_input])]
    outputs = [
        typed(f"y{index}", each.type_str) for index, each in enumerate(schema.outputs[: max(1, schema.min_output)])
    ]
    usual = {onnx.AttributeProto.INT: 1, onnx.AttributeProto.FLOAT: 1.0, onnx.AttributeProto.INTS: [1]}
    usual |= {onnx.AttributeProto.FLOATS: [1.0], onnx.AttributeProto.STRING: b""}
    attributes = {name: usual.get(int(each.type)) for name, each in schema.attributes.items() if each.required}
    if None in (*inputs, *outputs, *attributes.values()) or not bound.get(first, first):
        return None
    names = [[value.name for value in values] for values in (inputs, outputs)]
    node = helper.make_node(schema.name, *names, domain=schema.domain, **attributes)
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(schema.domain, opset)], ir_version=8)
    return bytes(model.SerializeToString())


def functions() -> Iterator[tuple[str, int, str, str, bytes]]:
    """Name, opset, first type parameter and dtype of each operator with a function body, and a model of it."""
    names = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and (schema.has_function or schema.has_context_dependent_function)
    }
    for name in sorted(names):
        for opset in OPSETS:
            schema = onnx.defs.get_schema(name, opset) if first_opset(name) <= opset else None
            for dtype in DTYPES if schema is not None and not schema.deprecated else ():
                model = single_node(schema, dtype, opset)
                if model is not None:
                    yield name, opset, (schema.inputs or schema.outputs)[0].type_str, dtype, model


def first_opset(name: str) -> int:
    """The opset that an operator came with."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return min(schema.since_version for schema in schemas if schema.name == name and not schema.domain)


def plain(opset: int, ir_version: int) -> bytes:
    """A model of one Relu."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    return bytes(model.SerializeToString())


def asked(release: str, folder: Path, models: list[bytes]) -> dict[str, Any]:
    """The answers of a release of onnxruntime about itself and about the models."""
    place = installed("onnxruntime", f"{release}.*", folder)
    numpy = [installed("numpy", "1.26.4", folder)] if release in NUMPY_1 else []
    paths = os.pathsep.join(str(path) for path in (*numpy, place))
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=pickle.dumps(models),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if done.returncode:
        raise SystemExit(f"onnxruntime {release}: {done.stderr.decode()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def installed(package: str, version: str, folder: Path) -> Path:
    """A folder with that release of a package alone."""
    place = folder / f"{package}-{version.removesuffix('.*')}"
    if not place.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*command, f"{package}=={version}"], check=True)
    return place


class Rows:
    """Kernels, and the first and last release that has each."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int, int, str], list[int]] = {}

    def add(self, place: int, domain: str, op_type: str, start: int, end: int, types: dict[str, list[str]]) -> None:
        plain_types = {name: sorted({held(text) for text in texts}) for name, texts in types.items()}
        key = (domain, op_type, start, 0 if end == OPEN_END else end, json.dumps(plain_types, sort_keys=True))
        self.found.setdefault(key, []).append(place)

    def table(self) -> dict[str, list[Any]]:
        """``domain::op``: [first version, last version or 0, {parameter: dtypes}, first release, last release] of each."""
        result: dict[str, list[Any]] = {}
        for (domain, op_type, start, end, types), places in sorted(self.found.items()):
            words = {name: " ".join(kinds) for name, kinds in json.loads(types).items()}
            for first, last in spans(places):
                result.setdefault(f"{domain}::{op_type}", []).append(
                    [start, end, words, RELEASES[first], RELEASES[last]]
                )
        return result


def spans(places: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of following numbers."""
    ordered = sorted(set(places))
    first = last = ordered[0]
    for place in ordered[1:]:
        if place != last + 1:
            yield first, last
            first = place
        last = place
    yield first, last


def equal_runs(by_opset: dict[int, list[str]]) -> Iterator[tuple[int, int, list[str]]]:
    """Opsets in a row with the same dtypes."""
    for _, group in itertools.groupby(sorted(by_opset), key=lambda opset: by_opset[opset]):
        opsets = list(group)
        yield opsets[0], opsets[-1], by_opset[opsets[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/onnxruntime"), help="where the releases are installed")
    parser.add_argument("--write", type=Path, default=TABLE)
    given = parser.parse_args()
    opsets, versions, bodies = list(range(16, 29)), list(range(8, 15)), list(functions())
    models = [plain(opset, 8) for opset in opsets] + [plain(13, version) for version in versions]
    models += [model for *_, model in bodies]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda release: asked(release, given.folder, models), RELEASES))
    rows, taken_apart, releases = Rows(), Rows(), {}
    for place, (release, answer) in enumerate(zip(RELEASES, answers, strict=True)):
        problems = answer["problems"]
        after = len(opsets) + len(versions)
        releases[release] = {
            "tried": answer["version"],
            "opset": max(opset for opset, problem in zip(opsets, problems, strict=False) if not problem),
            "ir": max(
                version for version, problem in zip(versions, problems[len(opsets) : after], strict=True) if not problem
            ),
        }
        for domain, op_type, start, end, types in answer["kernels"]:
            wrong = FAILS_IN_A_RUN.get((domain, op_type))
            types = {name: [text for text in texts if text != wrong] for name, texts in types.items()}
            if domain in DOMAINS:
                rows.add(place, domain, op_type, start, end, types)
        found: dict[tuple[str, str], dict[int, list[str]]] = {}
        for (name, opset, parameter, dtype, _), problem in zip(bodies, problems[after:], strict=True):
            if not problem:
                found.setdefault((name, parameter), {}).setdefault(opset, []).append(dtype)
        for (name, parameter), by_opset in found.items():
            for first, last, dtypes in equal_runs(by_opset):
                taken_apart.add(place, "", name, first, last, {parameter: dtypes})
        print(release, answer["version"], len(answer["kernels"]), releases[release])
    head = {
        "runtime": "onnxruntime",
        "source": "each release's own list of kernels of its CPU provider, and what it opens",
        "date": date.today().isoformat(),
        "casts": {"float16": "float"},
        "releases": releases,
        "lacks": LACKS,
        "lacks_in": LACKS_IN,
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts += [f'"{name}": {{\n{lines(each)}\n}}' for name, each in (("kernels", rows), ("functions", taken_apart))]
    given.write.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def lines(rows: Rows) -> str:
    """An operator a line."""
    return ",\n".join(f" {json.dumps(op)}: {json.dumps(each)}" for op, each in rows.table().items())


if __name__ == "__main__":
    main()
