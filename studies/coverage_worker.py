"""One model through eager PyTorch, capture, export and both engines, in a process that may crash, hang or grow."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import multiprocessing
import os
import queue
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from studies.coverage_models import attempts

STAGES = ("build", "eager", "capture", "export", "match")
"""The stages of a model, in order; a row names the last stage that it passed and the error of the next."""

ENGINES = ("onnxruntime", "runner")

MODELS_A_WORKER = 60
"""A worker is replaced after so many models, so that what their packages leave behind does not add up."""
LARGEST_BYTES = 18 << 30
"""The memory of all workers together. A worker that grows beyond its share is stopped and the model counted as failed:
the machine has other users."""

_POLL_S = 0.5

Row = dict[str, Any]


def examine(source: str, name: str, dynamic: bool = False) -> Row:
    """The row of one model. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"source": source, "name": name, "dynamic": dynamic, "passed": ""}
    try:
        with _quiet():
            built = _built(row, source, name)
            if built is not None:
                _exported(row, built, dynamic)
    except Exception as error:  # whatever a model raises is its row's result
        stage = STAGES[STAGES.index(row["passed"]) + 1] if row["passed"] else "build"
        row["error"] = _described(error, stage)
    return row


def _built(row: Row, source: str, name: str) -> Any:
    """The first form of the model that builds and runs; None with the error of the last form otherwise."""
    import torch

    failure: Any = None
    for label, build in attempts(source, name):
        stage = "build"
        try:
            found = build()
            row["passed"], stage = "build", "eager"
            with torch.no_grad():
                run = functools.partial(found.module, *found.args, **found.kwargs)
                seconds, first = _timed(run)
                again = run()
        except Exception as error:  # another form of the model may still build
            if failure is None or stage == "eager":
                failure = _described(error, stage)
            continue
        row |= {
            "passed": "eager",
            "form": label,
            "origin": found.origin,
            "eager_s": round(seconds, 3),
            "parameters": sum(value.numel() for value in found.module.parameters()),
            "random": not _same(first, again),
        }
        return found
    row["error"] = failure
    return None


def _exported(row: Row, built: Any, dynamic: bool) -> None:
    import fx2onnx
    from fx2onnx import verify
    from fx2onnx.aten_map import TABLE
    from fx2onnx.capture.driver import capture
    from fx2onnx.capture.options import CaptureOptions
    from fx2onnx.model_patches.library import LibraryPatches
    from fx2onnx.torchcompat.operators import is_decomposable
    from fx2onnx.verify.compare import TYPES_ONLY

    module, args, kwargs = built.module, built.args, built.kwargs
    shapes = built.dynamic_shapes if dynamic else None
    shapes = {name: dict(axes) for name, axes in shapes.items()} if shapes else None
    seconds, captured = _timed(
        lambda: capture(
            module,
            args,
            kwargs,
            CaptureOptions(dynamic_shapes=shapes, bake=built.bake, data_branches=built.data_branches),
            patches=LibraryPatches(),
            keep=lambda overload: overload in TABLE or not is_decomposable(overload),
        )
    )
    nodes = sum(node.op == "call_function" for node in captured.graph.nodes)
    row |= {"passed": "capture", "strategy": captured.strategy, "capture_s": round(seconds, 3), "nodes": nodes}
    seconds, result = _timed(
        lambda: fx2onnx.export(
            module, args, kwargs=kwargs, dynamic_shapes=shapes, bake=built.bake, data_branches=built.data_branches
        )
    )
    report = result.report
    row |= {"passed": "export", "export_s": round(seconds, 3), "onnx_nodes": report.nodes_onnx}
    row |= {"warnings": report.warnings[:3], "assumptions": [str(assumed) for assumed in report.assumptions[:5]]}
    verdict = verify(result, module, args, kwargs, engines=ENGINES, seeds=())
    worst = verdict.worst()
    row["notes"] = verdict.notes
    row["errors"] = {
        engine: [found.output, found.relative_error, found.allowed / (found.scale or 1.0), found.ok]
        for engine in ENGINES
        if (found := verdict.worst(engine)) is not None
    }
    if verdict.ok and TYPES_ONLY in verdict.notes:
        row["error"] = {"stage": "match", "code": "", "what": TYPES_ONLY, "where": "", "why": ""}
    elif verdict.ok:
        row["passed"] = "match"
    elif worst is None:
        row["error"] = {"stage": "match", "code": "", "what": "nothing was compared", "where": "", "why": ""}
    else:
        bad = [line for line in verdict.rows if not line.ok]
        what = worst.problem or "numbers differ"
        why = f"{len(bad)} of {len(verdict.rows)} outputs; {worst.engine}, {worst.output}: error {worst.max_abs_error:.2g}, allowed {worst.allowed:.2g}"
        row["error"] = {"stage": "match", "code": "E501", "what": what, "where": "", "why": why}


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def _same(one: Any, two: Any) -> bool:
    """True if two eager results are the same numbers (a model that draws noise gives others)."""
    import torch

    from fx2onnx.torchcompat.pytrees import flatten

    pairs = zip(flatten(one)[0], flatten(two)[0], strict=False)
    return all(
        not isinstance(a.value, torch.Tensor)
        or (a.value.shape == b.value.shape and bool(torch.allclose(a.value.float(), b.value.float(), equal_nan=True)))
        for a, b in pairs
        if not isinstance(a.value, torch.Tensor) or not a.value.is_complex()
    )


def _described(error: BaseException, stage: str) -> Row:
    """Code, first line, user's line and reason of an error; of a missing translation, every overload concerned."""
    code = getattr(error, "code", "")
    if not code or not hasattr(error, "what"):
        lines = str(error).strip().splitlines() or [""]
        frames = [f for f in traceback.extract_tb(error.__traceback__) if re.search(_OURS, f.filename)][-1:]
        where = "".join(f"{_relative(frame.filename)}:{frame.lineno}, in {frame.name}" for frame in frames)
        return {"stage": stage, "code": type(error).__name__, "what": lines[0][:300], "where": where, "why": ""}
    found: Row = {
        "stage": stage,
        "code": code,
        "what": error.what,
        "where": str(error.where or ""),
        "why": error.why[:600],
    }  # type: ignore[attr-defined]
    if code == "E201":
        overload = r"(?:\w+\.)+\w+"
        found["missing"] = list(dict.fromkeys(re.findall(rf"(?:translate|first) ({overload}) ?", error.what)))  # type: ignore[attr-defined]
        others = error.why.partition("also missing: ")[2]  # type: ignore[attr-defined]
        found["missing"] += re.findall(rf"(?:^|; )({overload}) \(", others)
    return found


_OURS = r"/site-packages/(?!torch/)|/fx2onnx/(capture|lower|aten_map|optimize|sources|verify)/"


def _relative(path: str) -> str:
    return re.sub(r"^.*/(site-packages/|(?=fx2onnx/|studies/))", "", path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def answer(pipe: Any, examine: Callable[..., Row]) -> None:
    """Run ``examine`` for each request that comes through the pipe, in a worker's process of a sweep."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        pipe.send(examine(*pipe.recv()))


def read_named_rows(path: Path) -> dict[str, Row]:
    """The last row of each model, by source and name. A line that a stopped run cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {f"{row['source']}:{row['name']}": row for row in rows}


def _serve(pipe: Any) -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    import fx2onnx

    torch.set_num_threads(1)
    fx2onnx.export(torch.nn.Linear(2, 2), torch.ones(1, 2))  # the first export pays for imports
    pipe.send("ready")
    while True:
        pipe.send(examine(*pipe.recv()))


class Worker:
    """A process that examines one model after another and is replaced when it crashes, hangs or grows too large."""

    serve: Callable[[Any], None] = staticmethod(_serve)
    """The function that the process runs."""

    def __init__(self, limit_s: float, limit_bytes: int = LARGEST_BYTES) -> None:
        self._limit_s = limit_s
        self._limit_bytes = limit_bytes
        self._process: Any = None
        self._left = 0

    def examine(self, source: str, name: str, dynamic: bool) -> Row:
        if self._process is None or self._left == 0:
            self._start()
        self._left -= 1
        self._pipe.send((source, name, dynamic))
        problem = self._wait(self._limit_s)
        if problem is None:
            row: Row = self._pipe.recv()
            return row
        self.close()
        error = {"stage": "build", "code": "process", "what": problem, "where": "", "why": ""}
        return {"source": source, "name": name, "dynamic": dynamic, "passed": "", "error": error}

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self.serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._left = MODELS_A_WORKER
        problem = self._wait(300)
        if problem is not None:
            raise RuntimeError(f"the worker does not start: {problem}")
        self._pipe.recv()

    def _wait(self, limit_s: float) -> str | None:
        """Until the worker answers; else what went wrong. Time in which the machine stopped both does not count."""
        import psutil

        for _ in range(int(limit_s / _POLL_S)):
            try:
                if self._pipe.poll(_POLL_S):
                    return None
                if psutil.Process(self._process.pid).memory_info().rss > self._limit_bytes:
                    return f"more than {self._limit_bytes >> 30} GB of memory"
            except (EOFError, OSError, psutil.Error):
                break
            if not self._process.is_alive():
                break
        else:
            return f"no answer within {limit_s:.0f} s"
        self._process.join(5)
        return f"the process died with exit code {self._process.exitcode}"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def examine_all(tasks: Iterable[tuple[str, str]], dynamic: bool, limit_s: float, jobs: int = 1) -> Iterator[Row]:
    """The rows of ``(source, name)`` pairs as they become ready, from ``jobs`` processes."""
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def serve() -> None:
        worker = Worker(limit_s, LARGEST_BYTES // jobs)
        try:
            while True:
                source, name = waiting.get_nowait()
                start = time.perf_counter()
                row = worker.examine(source, name, dynamic)
                ready.put(row | {"total_s": round(time.perf_counter() - start, 2)})
        except queue.Empty:
            pass
        finally:
            worker.close()
            ready.put(None)

    for _ in range(jobs):
        threading.Thread(target=serve, daemon=True).start()
    for _ in range(jobs):
        while (row := ready.get()) is not None:
            yield row
