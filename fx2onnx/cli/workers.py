"""Exports in processes of their own: one that hangs, crashes or is killed for memory costs its model, not the run."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TypeAlias, TypeVar

from fx2onnx.base.errors import InternalError
from fx2onnx.cli.job import Job, StageDisplay, run
from fx2onnx.cli.made_from import made_from
from fx2onnx.cli.outcome import as_known
from fx2onnx.cli.reads import reads_noted
from fx2onnx.irx.model_files import digest_of_model

Row: TypeAlias = dict[str, Any]
Result = TypeVar("Result")

JOBS_A_PROCESS = 50
"""A process is replaced after so many models, so that what their packages leave behind does not add up."""

START_SECONDS = 300.0
"""A new process imports torch before its first model; on a busy disk that alone takes tens of seconds."""

_PIPELINE = ("fx2onnx.capture.driver", "fx2onnx.lower.loop", "fx2onnx.optimize.pipelines", "fx2onnx.sources")
"""Imported before the first model's time counts: what an export imports when it begins."""


def attempt(job: Job, display: StageDisplay) -> Row:
    """The row of one job. Errors become rows, too."""
    start = time.perf_counter()
    row: Row = {"source": job.source, "file": None, "ok": False, "exit_code": 0, "error": None, "job": job.as_dict()}
    try:
        with reads_noted() as reads:
            done = run(job, display)
        row |= {"file": job.output, "ok": done.summary["ok"], "exit_code": 0 if done.summary["ok"] else 1}
        row |= {key: done.summary[key] for key in ("origin", "report", "verify")}
        row |= {"digest": digest_of_model(job.output), "made_from": made_from(job, reads)}
    except Exception as error:  # the model's code may raise anything; the run goes on with the next model
        known = as_known(error)
        row |= {"error": known.as_dict(), "exit_code": known.exit_code}
    row["seconds"] = round(time.perf_counter() - start, 3)
    return row


def run_all(
    jobs: Sequence[Job], processes: int, limit_s: float, on_stage: Callable[[int, str, str], None]
) -> Iterator[Row]:
    """The rows of ``jobs`` as they become ready. ``on_stage(process, source, stage)`` is called from other threads."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Row | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    for job in jobs:
        waiting.put(job)

    def serve(number: int) -> None:
        worker = Worker(limit_s, lambda source, stage: on_stage(number, source, stage))
        try:
            while not stop.is_set():
                ready.put(worker.run(waiting.get_nowait()))
        except queue.Empty:
            pass
        except BaseException as error:  # the main thread raises it
            ready.put(error)
        finally:
            worker.close()
            on_stage(number, "", "")
            ready.put(None)

    threads = [threading.Thread(target=serve, args=(number,), daemon=True) for number in range(processes)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            while (row := ready.get()) is not None:
                if isinstance(row, BaseException):
                    raise row
                yield row
    finally:
        stop.set()


class Worker:
    """A process that runs one job after another, started when needed and after each loss."""

    def __init__(
        self, limit_s: float, on_stage: Callable[[str, str], None] = lambda source, stage: None, folder: str = ""
    ) -> None:
        """``folder``: where the process works; empty: where this one does."""
        self.settings = (limit_s, folder)
        self._limit_s = limit_s
        self._folder = folder
        self._on_stage = on_stage
        self._process: Any = None
        self._left = 0

    def run(self, job: Job) -> Row:
        fresh = self._process is None or self._left == 0
        if fresh:
            self._on_stage(job.source, "starting")
            self._start()
        self._left -= 1
        with suppress(OSError):  # of a process that has died already, which shows when its answer is read
            self._pipe.send(job)
        start = time.perf_counter()
        end = start + self._limit_s + (START_SECONDS if fresh else 0.0)
        problem = f"no result within {self._limit_s:.0f} s"
        while (left := end - time.perf_counter()) > 0:
            try:
                if not self._pipe.poll(left):
                    break
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                self._process.join(5)
                problem = f"its process died with exit code {self._process.exitcode}"
                break
            if kind == "row":
                row: Row = value
                return row
            if kind == "begin":
                end = time.perf_counter() + self._limit_s
            self._on_stage(job.source, value)
        self.close()
        return lost_row(job, problem, time.perf_counter() - start)

    def _start(self) -> None:
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._folder), daemon=True)
        process.start()
        self._process = process
        theirs.close()
        self._left = JOBS_A_PROCESS

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def lost_row(job: Job, problem: str, seconds: float) -> Row:
    error = InternalError(
        "E900",
        f"the export of {job.source} did not end: {problem}",
        next=["export this model alone", "--limit SECONDS gives each model more time"],
    )
    row: Row = {"source": job.source, "file": None, "ok": False, "exit_code": 1, "error": error.as_dict()}
    return row | {"job": job.as_dict(), "seconds": round(seconds, 3)}


class _PipeDisplay:
    """Sends the stages through a pipe."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        self._pipe.send(("stage", title.split()[0]))
        yield

    def call(self, title: str, function: Callable[[], Result]) -> Result:
        with self.stage(title):
            return function()


def _serve(pipe: Any, folder: str) -> None:
    if folder:
        os.chdir(folder)
    import torch

    for module in _PIPELINE:
        importlib.import_module(module)
    torch.set_num_threads(1)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(("begin", "build"))
        # What a model prints would break into the display of the process that shows the progress.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            row = attempt(job, _PipeDisplay(pipe))
        pipe.send(("row", row))
