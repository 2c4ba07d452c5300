"""``make target-probes``: what OpenVINO, tract and onnxruntime-web run of ONNX's own test cases, into fx2onnx/targets/tables/.

Each runs in a process of its own, which may die of a case without harm to the others; it gets the models of ``target_cases``.
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

from benchmarks.target_cases import OPSETS, Case, cases, with_constants
from benchmarks.target_kernels import installed

TABLES = Path(__file__).parents[1] / "fx2onnx" / "targets" / "tables"
SECONDS = 20
"""A case may take so long."""

PYTHON = """
import pickle, sys
import numpy as np
sys.stdout.reconfigure(line_buffering=True)
engine, path, start = sys.argv[1], sys.argv[2], int(sys.argv[3])

def openvino(model, inputs):
    import openvino as ov
    core = ov.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1})
    results = compiled(dict(inputs), share_inputs=False, share_outputs=False)
    return [np.array(results[index]) for index in range(len(compiled.outputs))]

def tract(model, inputs):
    import tract
    graph = tract.onnx().load_buffer(model) if hasattr(tract.onnx(), "load_buffer") else None
    if graph is None:
        open(path + ".onnx", "wb").write(model)
        graph = tract.onnx().load(path + ".onnx")
    for index, array in enumerate(inputs.values()):
        graph.set_input_fact(index, f"{','.join(map(str, array.shape))}{',' if array.ndim else ''}{TRACT[array.dtype.name]}")
    graph.analyse()
    runnable = graph.into_model().into_runnable()
    return [each.to_numpy() for each in runnable.run(list(inputs.values()))]

TRACT = {"float32": "f32", "float16": "f16", "float64": "f64", "bool": "bool", **{f"{u}int{b}": f"{u[:1] or 'i'}{b}" for u in ("u", "") for b in (8, 16, 32, 64)}}

def close(got, want):
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "biu":
        return bool(np.array_equal(got, want))
    got, want = got.astype(np.float64), want.astype(np.float64)
    return bool(np.allclose(got, want, rtol=2e-2 if engine == "tract" else 2e-2, atol=2e-2, equal_nan=True))

for place, (model, inputs, outputs) in enumerate(pickle.load(open(path, "rb"))):
    if place < start:
        continue
    try:
        got = globals()[engine](model, inputs)
        said = "" if len(got) == len(outputs) and all(map(close, got, outputs)) else "other numbers"
    except BaseException as cause:
        said = f"{type(cause).__name__}: {str(cause)[:150]}" or "fails"
        if "public API TDim" in said:  # it has run, with integers of a kind that Python does not get
            said = ""
    print("@" + repr(said))
"""

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
  } catch (cause) { said = String(cause.message ?? cause).slice(0, 150) || 'fails'; }
  console.log('@' + JSON.stringify(said));
}
"""


def asked(command: list[str], count: int, env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
    """What the process says of each case. One that dies or hangs has failed at that case; the next goes on behind it."""
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
    """What a Python package says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases"
        file.write_bytes(pickle.dumps([(case.model, case.inputs, case.outputs) for case in every]))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths), "OMP_NUM_THREADS": "1"}
        return asked([sys.executable, "-c", PYTHON, engine, str(file)], len(every), env)


def tried(engine: str, every: list[Case], paths: list[Path]) -> list[str]:
    """The same, and what fails once more with constants where files have them."""
    said = by_python(engine, every, paths)
    failed = [place for place, problem in enumerate(said) if problem]
    again = by_python(engine, [with_constants(every[place]) for place in failed], paths)
    for place, problem in zip(failed, again, strict=True):
        said[place] = said[place] if problem else ""
    return said


def by_node(every: list[Case], place: Path) -> list[str]:
    """What onnxruntime-web says in Node.js; numbers are not compared, since they are those of onnxruntime."""
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


def written(runtime: str, release: str, every: list[Case], said: list[str], path: Path, more: dict[str, Any]) -> None:
    """The table: of each operator version the dtypes in which it runs, and how many of ONNX's cases do."""
    passed: dict[tuple[str, int, str], set[str]] = defaultdict(set)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    failed: dict[str, list[str]] = defaultdict(list)
    for case, problem in zip(every, said, strict=True):
        counts[f"::{case.op_type}"][1] += 1
        if problem:
            failed[f"::{case.op_type}"].append(f"{case.name} {case.dtype}: {problem}")
        else:
            passed[case.op_type, case.version, case.parameter].add(case.dtype)
            counts[f"::{case.op_type}"][0] += 1
    rows: dict[str, list[Any]] = defaultdict(list)
    for (op_type, version, parameter), dtypes in sorted(passed.items()):
        rows[f"::{op_type}"].append([version, version, {parameter: " ".join(sorted(dtypes))}, release, release])
    head = {
        "runtime": runtime,
        "source": "test cases of the onnx package, as they are, in older opsets and in other dtypes",
        "date": date.today().isoformat(),
        "from_opset": min(OPSETS),
        **more,
        "releases": {release: {}},
        "cases": {"tried": len(every), "run": sum(not problem for problem in said)},
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for name, table in (("kernels", rows), ("passed", {op: counts[op] for op in sorted(counts)})):
        body = ",\n".join(f" {json.dumps(op)}: {json.dumps(each)}" for op, each in table.items())
        parts.append(f'"{name}": {{\n{body}\n}}')
    path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    print(runtime, release, head["cases"], sum(bool(counts[op][0]) for op in counts), "of", len(counts), "operators")
    (Path(tempfile.gettempdir()) / f"{runtime}-failed.json").write_text(json.dumps(failed, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/runtimes"), help="where the runtimes are installed")
    parser.add_argument("--only", choices=("openvino", "tract", "onnxruntime-web"))
    given = parser.parse_args()
    every = list(cases())
    print(len(every), "cases of", len({case.op_type for case in every}), "operators")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.only in (None, "openvino"):
        paths = [installed("openvino", "2026.4.1", folder), installed("openvino-telemetry", "2025.2.0", folder)]
        known = [case for case in every if case.dtype != "bfloat16"]
        written("openvino", "2026.4", known, tried("openvino", known, paths), TABLES / "openvino.json", {})
    if given.only in (None, "tract"):
        known = [case for case in every if case.dtype != "bfloat16"]
        said = tried("tract", known, [installed("tract", "0.23.9", folder)])
        written("tract", "0.23", known, said, TABLES / "tract.json", {})
    if given.only in (None, "onnxruntime-web") and shutil.which("node"):
        known = [case for case in every if case.dtype != "bfloat16"]
        said = by_node(known, folder / "onnxruntime-web")
        version = json.loads((folder / "onnxruntime-web/node_modules/onnxruntime-web/package.json").read_text())[
            "version"
        ]
        release = ".".join(version.split(".")[:2])
        written("onnxruntime-web", release, known, said, TABLES / "onnxruntime-web.json", {})


if __name__ == "__main__":
    main()
