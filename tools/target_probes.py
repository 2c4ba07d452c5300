"""``make target-probes``: what runtimes run of ONNX's own test cases, into fx2onnx/targets/tables/.

Each runs in a process of its own (``target_engines.py``), which may die of a case without harm to the others; it gets the models
of ``target_cases``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tools.target_cases import cases, with_constants
from tools.target_domains import UNKNOWN, known, nodes
from tools.target_features import lacking
from tools.target_kernels import installed
from tools.target_nodes import OPSETS, Case

TABLES = Path(__file__).parents[1] / "fx2onnx" / "targets" / "tables"
ENGINES = Path(__file__).with_name("target_engines.py")
WEB = "onnxruntime-web"
SECONDS = 60
"""A case may take so long."""

NODE = """
import * as ort from 'onnxruntime-web';
import fs from 'fs';
const [folder, start] = [process.argv[2], Number(process.argv[3])];
ort.env.wasm.numThreads = 1; ort.env.logLevel = 'fatal';
const count = Number(fs.readFileSync(folder + '/count'));
for (let place = start; place < count; place++) {
  let said = '';
  try {
    const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync(`${folder}/${place}.onnx`)), {executionProviders: ['wasm'], logSeverityLevel: 4});
    const meta = JSON.parse(fs.readFileSync(`${folder}/${place}.json`));
    const feeds = {};
    for (const [name, each] of Object.entries(meta)) {
      const bytes = fs.readFileSync(`${folder}/${place}.${each.file}.bin`);
      const Array_ = {float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array, int8: Int8Array, uint8: Uint8Array, uint32: Uint32Array, uint64: BigUint64Array, int16: Int16Array, uint16: Uint16Array, float16: Uint16Array, bool: Uint8Array}[each.dtype];
      const data = new Array_(new Uint8Array(bytes).buffer);
      feeds[name] = new ort.Tensor(each.dtype, data, each.shape);
    }
    await session.run(feeds);
    await session.release();
  } catch (cause) { said = String(cause.message ?? cause).slice(0, 900) || 'fails'; }
  console.log('@' + JSON.stringify(said));
}
"""


def asked(command: list[str], count: int, env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
    """The lines of the process, one for each case. One that dies or hangs has failed at that case; the next goes on
    behind it."""
    said: list[str] = []
    while len(said) < count:
        process = subprocess.Popen(
            [*command, str(len(said))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, cwd=cwd
        )
        assert process.stdout is not None
        timer = _Watch(process)
        for line in process.stdout:
            timer.reset()
            if line.startswith("@"):
                said.append(ast.literal_eval(line[1:]))
        timer.stop()
        process.wait()
        if len(said) < count:
            said.append("the process ends")
    return said


class _Watch:
    """Kills a process that says nothing for ``SECONDS``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        import threading

        self._process, self._threading = process, threading
        self._timer: Any = None
        self.reset()

    def reset(self) -> None:
        self.stop()
        self._timer = self._threading.Timer(SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def by_python(engine: str, every: list[Case], paths: list[Path]) -> list[str]:
    """The lines of a Python package, one for each case."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases"
        file.write_bytes(pickle.dumps([(case.model, case.inputs, case.outputs) for case in every]))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths), "OMP_NUM_THREADS": "1"}
        return asked([sys.executable, "-P", str(ENGINES), engine, str(file)], len(every), env)


def tried(engine: str, every: list[Case], paths: list[Path]) -> list[str]:
    """The same, and what fails once more as files mostly have it, with constants."""
    said = by_python(engine, every, paths)
    failed = [place for place, problem in enumerate(said) if problem]
    usual = [with_constants(every[place]) for place in failed]
    for place, problem in zip(failed, by_python(engine, usual, paths), strict=True):
        said[place] = said[place] if problem else ""
    return said


def by_node(every: list[Case], place: Path) -> list[str]:
    """The lines of onnxruntime-web in Node.js; numbers are not compared, since they are those of onnxruntime."""
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text("{}")
        subprocess.run(["npm", "install", "onnxruntime-web"], cwd=place, check=True, capture_output=True)
    (place / "probe.mjs").write_text(NODE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "count").write_text(str(len(every)))
        for index, case in enumerate(every):
            (folder / f"{index}.onnx").write_bytes(case.model)
            meta = {}
            for number, (key, array) in enumerate(case.inputs.items()):
                (folder / f"{index}.{number}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
                meta[key] = {"file": number, "dtype": array.dtype.name, "shape": list(array.shape)}
            (folder / f"{index}.json").write_text(json.dumps(meta))
        return asked(["node", "probe.mjs", str(folder)], len(every), cwd=place)


WITH_NEIGHBOURS = {"qnn": frozenset({"DequantizeLinear", "QuantizeLinear"})}
"""Operators that a runtime takes into those beside them, and not alone: nothing is said of their dtypes."""

NEWEST = 999
"""The end of a range of versions that is open."""

Types = tuple[tuple[str, str], ...]
"""The dtype of each type parameter."""


def written(
    runtime: str, release: str, every: list[Case], said: list[str], path: Path, source: str, others: list[str]
) -> None:
    """The table: of each operator version the dtypes in which it runs and in which it fails, what it lacks, how many cases run,
    and ``others``, the operators of other domains that it knows.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    failed: dict[str, list[str]] = defaultdict(list)
    for case, problem in zip(every, said, strict=True):
        counts[f"::{case.op_type}"][0] += not problem
        counts[f"::{case.op_type}"][1] += 1
        if problem:
            failed[f"::{case.op_type}"].append(f"{case.name} {case.version} {case.types}: {problem}")
    runs, fails = _dtypes(every, said, WITH_NEIGHBOURS.get(runtime, frozenset()))
    head = {
        "runtime": runtime,
        "source": f"{source}: nodes made from the test cases of the onnx package, in opsets {OPSETS[0]} to {OPSETS[-1]}",
        "date": date.today().isoformat(),
        "from_opset": min(OPSETS),
        "releases": {release: {}},
        "cases": {"tried": len(every), "run": sum(not problem for problem in said)},
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    tables = {
        "kernels": _rows(runs, release) | {operator: [[1, NEWEST, {}, release, release]] for operator in others},
        "fails": _rows(fails, release),
        "lacks": lacking(every, said),
        "passed": {op: counts[op] for op in sorted(counts)},
    }
    for name, table in tables.items():
        body = ",\n".join(f" {json.dumps(op)}: {json.dumps(each)}" for op, each in table.items())
        parts.append(f'"{name}": {{\n{body}\n}}')
    path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    print(runtime, release, head["cases"], sum(bool(counts[op][0]) for op in counts), "of", len(counts), "operators")
    (Path(tempfile.gettempdir()) / f"{runtime}-failed.json").write_text(json.dumps(failed, indent=1))


def _dtypes(
    every: list[Case], said: list[str], unsure: frozenset[str]
) -> tuple[dict[tuple[str, int], set[Types]], dict[tuple[str, int], set[Types]]]:
    """The dtypes in which a case runs, by operator and version, and those in which every one fails although it asks for
    nothing that a case which runs in other dtypes does not ask for.
    """
    runs: dict[tuple[str, int], set[Types]] = defaultdict(set)
    asked_for: dict[tuple[str, int], list[frozenset[str]]] = defaultdict(list)
    for case, problem in zip(every, said, strict=True):
        if not problem:
            runs[case.op_type, case.version].add(tuple(sorted(case.types.items())))
            asked_for[case.op_type, case.version].append(case.features)
    fails: dict[tuple[str, int], set[Types]] = defaultdict(set)
    for case, problem in zip(every, said, strict=True):
        key, types = (case.op_type, case.version), tuple(sorted(case.types.items()))
        is_plain = not asked_for[key] or any(case.features <= features for features in asked_for[key])
        if problem and is_plain and types not in runs[key] and case.op_type not in unsure:
            fails[key].add(types)
    return runs, fails


def _rows(found: dict[tuple[str, int], set[Types]], release: str) -> dict[str, list[Any]]:
    """As tables have them: one row for dtypes that differ in the first type parameter alone."""
    rows: dict[str, list[Any]] = defaultdict(list)
    for (op_type, version), every in sorted(found.items()):
        together: dict[Types, set[str]] = defaultdict(set)
        for types in every:
            together[types[1:]].add(types[0][1] if types else "")
        first = next((types[0][0] for types in every if types), "")
        for others, words in sorted(together.items()):
            bound = {first: " ".join(sorted(words))} if first else {}
            rows[f"::{op_type}"].append([version, version, {**bound, **dict(others)}, release, release])
    return dict(sorted(rows.items()))


PACKAGES = {
    "openvino": ("2026.4", "run on its CPU plugin", (("openvino", "2026.4.1"), ("openvino-telemetry", "2025.2.0"))),
    "tract": ("0.23", "run", (("tract", "0.23.9"),)),
    "qnn": ("2.7", "run in onnxruntime's provider on the emulation of Qualcomm's HTP", (("onnxruntime-qnn", "2.7.0"),)),
    "wonnx": ("0.5", "run on a Vulkan device in software", (("wonnx", "0.5.1"),)),
    "rten": ("0.22", "taken by rten-convert, not run", (("rten-convert", "0.22.0"),)),
}
"""Runtimes that are packages for Python: release, how it was asked, what to install. wonnx wants a Vulkan driver (Debian:
mesa-vulkan-drivers).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/runtimes"), help="where the runtimes are installed")
    parser.add_argument("--only", choices=(*PACKAGES, WEB))
    given = parser.parse_args()
    every = list(cases())
    print(len(every), "cases of", len({case.op_type for case in every}), "operators")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    outside = list(nodes())
    for runtime, (release, source, packages) in PACKAGES.items():
        if given.only in (None, runtime):
            paths = [installed(*package, folder) for package in packages]
            said = tried(runtime, every, paths)
            others = known(runtime, outside, by_python(runtime, outside, paths)) if runtime in UNKNOWN else []
            written(runtime, release, every, said, TABLES / f"{runtime}.json", source, others)
    if given.only in (None, WEB) and shutil.which("node"):
        place = folder / WEB
        said = by_node(every, place)
        package = json.loads((place / "node_modules/onnxruntime-web/package.json").read_text())
        release = ".".join(package["version"].split(".")[:2])
        others = known(WEB, outside, by_node(outside, place))
        written(WEB, release, every, said, TABLES / f"{WEB}.json", "run in Node.js, on WebAssembly", others)


if __name__ == "__main__":
    main()
