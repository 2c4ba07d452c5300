"""The process of the ``fx2onnx`` command: quick to start, quick to end. ``fx2onnx.cli.main`` is the command itself."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading

GARBAGE_THRESHOLDS = (100_000, 50)
"""New containers between two searches for cyclic garbage, and such searches between two among older ones: importing torch makes a
million that all stay, and Python's own thresholds search them for a tenth of the time."""


def run() -> None:
    """What the console script and ``python -m fx2onnx`` call; ends the process, with the exit codes of ``main``."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    from fx2onnx.cli.main import main  # which imports thousands of containers itself

    try:
        main()
    except SystemExit as end:
        _leave(end)
        raise


def _leave(end: SystemExit) -> None:
    """End the process without taking apart module after module, which is a tenth of a short command's time.

    Threads are waited for, exit functions run and streams are flushed as at any end. Where a profiler or a debugger wants to
    see the end, or the end wants to print something, this returns.
    """
    wait = getattr(threading, "_shutdown", None)  # as Python's own end calls them, and multiprocessing
    run_exit_functions = getattr(atexit, "_run_exitfuncs", None)
    watched = sys.gettrace() is not None or sys.getprofile() is not None
    if watched or wait is None or run_exit_functions is None or not isinstance(end.code, int | None):
        return
    wait()
    run_exit_functions()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads any more: Python's own end says so in its way
        return
    os._exit(end.code or 0)
