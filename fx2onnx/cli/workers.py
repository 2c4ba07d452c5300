"""Exports in processes of their own, on this machine or on a cluster: one that hangs, crashes or is killed for memory costs its
model, not the run.
"""

from __future__ import annotations

import importlib
import io
import logging
import multiprocessing
import os
import queue
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fx2onnx.base.errors import InternalError, UserError, first_line
from fx2onnx.cli.job import Job, StageDisplay, run
from fx2onnx.cli.made_from import made_from, reads_noted
from fx2onnx.cli.outcome import as_known
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
    workers = [Worker(limit_s, partial(on_stage, number)) for number in range(processes)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run_one(job: Job) -> Row:
        worker = idle.get()
        try:
            return worker.run(job)
        finally:
            on_stage(workers.index(worker), "", "")
            idle.put(worker)

    with ThreadPoolExecutor(processes) as pool:
        futures = [pool.submit(run_one, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:  # a job that runs ends with its process, so that the pool's threads end, too
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()


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


LONELY_SECONDS = 120.0
"""For so long a cluster may be without any worker: its manager may be starting new ones in the place of those that were lost."""

_POLL_SECONDS = 2.0
_CONNECT_SECONDS = 30
_ADDRESS = re.compile(r"dask://(?P<place>[^/\s]+:\d+)/?")


def check_address(address: str) -> str:
    """The scheduler's address as dask takes it. Raises UserError E001 for something else."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UserError(
            "E001", f"--cluster {address} is not an address", next="write dask://HOST:PORT, the scheduler's"
        )
    return f"tcp://{match['place']}"


def run_on_cluster(jobs: Sequence[Job], address: str, limit_s: float) -> Iterator[Row]:
    """The rows of ``jobs`` as they become ready. A job whose worker is lost is run again, by dask's rules.

    Raises:   UserError E604 where the scheduler cannot be reached, is lost, or has no workers.
    """
    import distributed

    scheduler = check_address(address)
    with _dask_says_nothing():
        try:
            client = distributed.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise _unreachable(address, first_line(error)) from error
        yield from _run(client, jobs, address, limit_s)


def _run(client: Any, jobs: Sequence[Job], address: str, limit_s: float) -> Iterator[Row]:
    run, here = uuid.uuid4().hex, os.getcwd()
    task = partial(run_on_worker, limit_s=limit_s, folder=here)
    futures = {client.submit(task, job, key=f"fx2onnx-{run}-{i}", pure=False): job for i, job in enumerate(jobs)}
    try:
        yield from _gathered(client, futures, address)
    finally:
        with suppress(OSError, TimeoutError):
            client.cancel(list(futures))
            if client.status == "running":
                client.run(close_idle)
        client.close(timeout=_CONNECT_SECONDS)


@contextmanager
def _dask_says_nothing() -> Iterator[None]:
    """Silence dask's log of lost connections, which would break into the display; its errors are reported by
    fx2onnx.
    """
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _gathered(client: Any, futures: dict[Any, Job], address: str) -> Iterator[Row]:
    from distributed import wait

    left = set(futures)
    seen = time.monotonic()
    while left:
        try:
            with client.as_current():
                done = wait(left, timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            done = set()
        except CancelledError as error:  # dask takes the jobs back where it loses the scheduler
            raise _unreachable(address, "the scheduler was lost") from error
        if client.status != "running":
            raise _unreachable(address, "the scheduler was lost")
        for future in done:
            left.remove(future)
            yield _row_of(future, futures[future])
        if done or client.scheduler_info(n_workers=1)["workers"]:
            seen = time.monotonic()
        elif time.monotonic() - seen > LONELY_SECONDS:
            raise _unreachable(address, f"it has been without workers for {LONELY_SECONDS:.0f} s")


def _unreachable(address: str, why: str) -> UserError:
    return UserError(
        "E604",
        f"the cluster {address} cannot be used",
        why=why,
        next="the same command goes on with what is left; without --cluster it runs on this machine",
    )


def _row_of(future: Any, job: Job) -> Row:
    """The row that the worker returned; an error where it returned none, or where its file is not here."""
    if future.status != "finished":
        problem = future.exception() if future.status == "error" else "the scheduler took it back"
        said = first_line(problem) if isinstance(problem, BaseException) else problem
        return lost_row(
            job, f"on the cluster, {type(problem).__name__ if problem is not said else 'error'}: {said}", 0.0
        )
    row: Row = future.result()
    if row["ok"] and row["digest"] != digest_of_model(job.output):
        error = UserError(
            "E301",
            f"'{job.output}' is not here, though {row['worker']} has written it",
            next="give all machines of the cluster the same folder under the same path",
        )
        row |= {"ok": False, "exit_code": error.exit_code, "error": error.as_dict()}
    return row


_IDLE: list[Worker] = []
"""Processes on a worker of the cluster that wait for their next job."""


def run_on_worker(job: Job, limit_s: float, folder: str) -> Row:
    """On a worker: the job's row. Model code that ends or blocks its process costs neither the worker nor other jobs."""
    # dask runs its workers as daemons of their nannies, which may have no processes of their own.
    multiprocessing.current_process().daemon = False
    try:
        process = _IDLE.pop()
    except IndexError:
        process = Worker(limit_s, folder=folder)
    if process.settings != (limit_s, folder):
        process.close()
        process = Worker(limit_s, folder=folder)
    try:
        row = process.run(job)
    except BaseException:
        process.close()
        raise
    _IDLE.append(process)
    from distributed import get_worker

    return row | {"worker": get_worker().address}


def close_idle() -> None:
    """On a worker: end the processes of a run."""
    while _IDLE:
        _IDLE.pop().close()
