"""Exports on a cluster of dask.distributed: each job in a process of its own on one of the cluster's workers.

The folder that the command runs in, and the one that it writes to, have to be the same under the same path everywhere.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.cli.job import Job
from fx2onnx.cli.workers import Row, Worker, lost_row
from fx2onnx.irx.model_files import digest_of_model

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


def run_all(jobs: Sequence[Job], address: str, limit_s: float) -> Iterator[Row]:
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
    """What it logs of lost connections would break into the display; what matters of it is our error."""
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
    """What the worker returned; an error where it returned none, or where its file is not here."""
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
