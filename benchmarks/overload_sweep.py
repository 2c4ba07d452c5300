"""Calls drawn from the schemas of all exportable overloads, exported one by one and compared with eager PyTorch.

``make overload-sweep``, or ``python -m benchmarks.overload_sweep [PATTERN ...] [--seed 1] [--each 10] [--jobs 2]``. Arguments
have ranks 0 to 4, sizes 0 to 5 and any dtype; optional ones are given or not. A call counts when eager PyTorch takes it. Calls at the
edge go through a table of moves, the next kind with each number of ``--each``. It goes on where an earlier call with this seed
stopped, and ``--write`` writes docs/measured/overload_sweep.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DRAWINGS = ("fitting", "edge", "misfit")
"""Calls that eager PyTorch takes, as drawn or moved to an edge, and calls that it refuses."""
PAGE = Path(__file__).parent.parent / "docs" / "measured" / "overload_sweep.md"
LIMIT_S = 30.0
"""One call, with all sets of arguments that eager PyTorch refuses."""
LARGEST_BYTES = 6 << 30
"""Address space of a worker."""
TASKS_A_WORKER = 60
OTHER_STORAGE = (
    "sparse", "mkldnn", "cufft", "fbgemm", "_nested", "_test_", "cudnn_is", "vulkan", "miopen", "_validate",
)  # fmt: skip
"""Parts of names of operators for tensors that are not strided, or for one back end."""
Row = dict[str, Any]
Task = tuple[str, int, int, str]
"""An overload, a seed, the number of the call, and how it is drawn (``overload_call.DRAWINGS``)."""


def overloads() -> dict[str, Any]:
    """Every overload that an export takes, by its name: with an entry, a decomposition, or writing in place."""
    from fx2onnx.aten_map import TABLE
    from fx2onnx.aten_map.table.families import load_all
    from fx2onnx.capture.recording.functionalize import functional_overload
    from fx2onnx.torchcompat.operators import is_decomposable, registered_overloads

    load_all()
    found = {str(overload): overload for overload in (*TABLE.entries, *TABLE.complex_entries)}
    for overload in registered_overloads("aten"):
        schema = overload._schema
        if any(argument.is_out for argument in schema.arguments):
            continue
        is_written = schema.is_mutable and functional_overload(overload) in TABLE
        if is_written or (not schema.is_mutable and is_decomposable(overload)):
            found.setdefault(str(overload), overload)
    return {
        name: overload
        for name, overload in sorted(found.items())
        if name.startswith("aten.")
        and not any(part in name for part in OTHER_STORAGE)
        and any("Tensor" in str(value.type) for value in overload._schema.returns)
    }


def serve(pipe: Any) -> None:
    """Examine one call after another, and say before each step what it is."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import warnings

    import torch

    from benchmarks.overload_call import examine

    warnings.simplefilter("ignore")
    torch.set_warn_always(False)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))
    known = overloads()
    examine(known["aten.relu.default"], 0, 0, lambda _: None)  # imports what every export needs
    pipe.send(("ready", None))
    while True:
        name, seed, index, drawing = pipe.recv()
        outcome = examine(known[name], seed, index, lambda stage: pipe.send(("stage", stage)), drawing)
        pipe.send(
            ("row", {"class": outcome.kind, "reason": outcome.reason, "call": outcome.call, "detail": outcome.detail})
        )


class Worker:
    """A process that examines calls, and that is replaced when it ends or takes too long."""

    def __init__(self) -> None:
        self._process: Any = None
        self._left = 0

    def examine(self, task: Task) -> Row:
        if self._process is None or self._left == 0:
            self._start()
        self._left -= 1
        self._pipe.send(task)
        stage, until = "eager", time.monotonic() + LIMIT_S
        while True:
            try:
                if not self._pipe.poll(max(0.0, until - time.monotonic())):
                    return self._lost(stage, f"no answer within {LIMIT_S:.0f} s")
                kind, content = self._pipe.recv()
            except (EOFError, OSError):
                self._process.join(5)
                return self._lost(stage, f"the process ended with exit code {self._process.exitcode}")
            if kind == "row":
                return dict(content)
            stage = content

    def _lost(self, stage: str, what: str) -> Row:
        self.close()
        kind = "not drawn" if stage in ("eager", "rerun") else "internal error"
        return {"class": kind, "reason": f"{stage}: {what}", "call": "", "detail": ""}

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._left = TASKS_A_WORKER * 50
        if not self._pipe.poll(300):
            raise RuntimeError("the worker does not start")
        self._pipe.recv()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def examine_all(tasks: Sequence[Task], jobs: int) -> Iterator[Row]:
    """The rows of tasks as they become ready."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def run() -> None:
        worker = Worker()
        try:
            while True:
                task = waiting.get_nowait()
                ready.put(dict(zip(("overload", "seed", "index", "drawing"), task, strict=True)) | worker.examine(task))
        except queue.Empty:
            pass
        finally:
            worker.close()
            ready.put(None)

    for _ in range(jobs):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(jobs):
        while (row := ready.get()) is not None:
            yield row


def read_rows(path: Path) -> list[Row]:
    """The last row of each call."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return list({_task(row): row for row in rows}.values())


def _task(row: Row) -> Task:
    return row["overload"], row["seed"], row["index"], row.get("drawing", "fitting")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"], help="overloads, such as 'aten.conv*'")
    parser.add_argument("--seed", type=int, action="append", help="may be given several times")
    parser.add_argument("--each", type=int, default=10, help="calls of each overload")
    parser.add_argument(
        "--drawing", action="append", choices=DRAWINGS, help="how calls are drawn; default: in each way"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path("out/overload_sweep.jsonl"), help="where rows are kept")
    parser.add_argument("--faults", action="store_true", help="examine only calls that an earlier run found wrong")
    parser.add_argument("--write", action="store_true", help="write docs/measured/overload_sweep.md")
    options = parser.parse_args(arguments)
    seeds = options.seed or [1]
    options.file.parent.mkdir(parents=True, exist_ok=True)
    from benchmarks.overload_page import FAULTS, describe, write_page

    known = {_task(row): row for row in read_rows(options.file)}
    names = [name for name in overloads() if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.patterns)]
    tasks = [
        (name, seed, index, drawing)
        for index in range(options.each)
        for seed in seeds
        for drawing in options.drawing or DRAWINGS
        for name in names
    ]
    if options.faults:
        tasks = [task for task in tasks if task in known and known[task]["class"] in FAULTS]
    else:
        tasks = [task for task in tasks if task not in known]
    with options.file.open("a", encoding="utf-8") as file:
        for count, row in enumerate(examine_all(tasks, options.jobs), 1):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if row["class"] in FAULTS or count % 1000 == 0:
                print(f"{count}/{len(tasks)} {describe(row)}", flush=True)
    chosen = [row for row in read_rows(options.file) if row["seed"] in seeds and row["overload"] in set(names)]
    if options.write:
        write_page(PAGE, chosen, seeds, options.each, options.faults)
    return int(any(row["class"] in FAULTS for row in chosen))


if __name__ == "__main__":
    sys.exit(main())
