"""Files in 16 bits beside the float32 file of the same model: bytes, memory of a process that runs it, time of a run.

    python -m benchmarks.half_precision [--sources torchvision:resnet18,hf:gpt2] [--dtypes float16,mixed]

Prints the rows of the table in docs/measured/half_precision.md. Time: onnxruntime with one thread, the processor's time, the files in turns in one process, medians; memory:
the peak of a process that opens the file and runs it twice, less that of one that only imports onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

SOURCES = ("torchvision:resnet18", "torchvision:mobilenet_v3_large", "hf:bert", "hf:gpt2", "hf:t5?num_layers=6")
DTYPES = ("float16", "bfloat16", "mixed")
ROUNDS = 7
_RUN = """
import sys
import numpy
sys.path.insert(0, {root!r})
from benchmarks.half_precision import fed, opened, peak_kib
base = peak_kib()
session = opened({path!r})
feeds = fed(session, dict(numpy.load({feeds!r})))
for _ in range(2):
    session.run(None, feeds)
print((peak_kib() - base) / 1024)
"""


def opened(path: str) -> Any:
    """With one thread and all optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def peak_kib() -> int:
    """The most memory that this process ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def fed(session: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """The inputs of the float32 file, as a file with ``io="float32"`` takes them."""
    names = {each.name for each in session.get_inputs()}
    return {name: array for name, array in feeds.items() if name in names}


def measured(spec: str, dtypes: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """A row for the float32 file and for each dtype."""
    import fx2onnx
    from fx2onnx.sources import resolve

    source = resolve(spec)
    rows: list[dict[str, Any]] = []
    for dtype in ("float32", *dtypes):
        path = folder / f"{dtype}.onnx"
        asked = {} if dtype == "float32" else {"dtype": dtype, "io": "float32"}
        fx2onnx.export(source.module, source.args, path, kwargs=source.kwargs, external_data=False, **asked)
        rows.append({"model": spec, "dtype": dtype, "path": str(path), "bytes": path.stat().st_size})
    session = opened(rows[0]["path"])
    tensors = [*source.args, *(source.kwargs or {}).values()]
    arrays = [each.numpy() for each in tensors if hasattr(each, "numpy")]
    feeds = dict(zip([each.name for each in session.get_inputs()], arrays, strict=False))
    np.savez(folder / "feeds.npz", **feeds)
    sessions = [opened(row["path"]) for row in rows]
    times: list[list[float]] = [[] for _ in rows]
    for turn in range(ROUNDS + 1):
        for each, found in zip(sessions, times, strict=True):
            start = time.process_time()
            each.run(None, fed(each, feeds))
            if turn:
                found.append(time.process_time() - start)
    del sessions, session
    for row, found in zip(rows, times, strict=True):
        row["ms"] = statistics.median(found) * 1e3
        text = _RUN.format(path=row["path"], root=str(Path(__file__).parents[1]), feeds=str(folder / "feeds.npz"))
        done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
        row["mib"] = float(done.stdout)
        Path(row["path"]).unlink()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    options = parser.parse_args()
    for spec in options.sources.split(","):
        with tempfile.TemporaryDirectory(prefix="fx2onnx-half-") as folder:
            rows = measured(spec, options.dtypes.split(","), Path(folder))
        first = rows[0]
        print(json.dumps(rows), file=sys.stderr, flush=True)
        for row in rows[1:]:
            size, memory, share = (row[key] / first[key] for key in ("bytes", "mib", "ms"))
            print(f"| {spec} | {row['dtype']} | {size:.2f} | {memory:.2f} | {share:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
