"""The process of the ``fx2onnx`` command, whose garbage collector waits. ``fx2onnx.cli.main`` is the command itself."""

from __future__ import annotations

import gc

GARBAGE_THRESHOLDS = (100_000, 50)
"""New containers between two searches for cyclic garbage, and such searches between two among older ones: importing torch makes a
million that all stay, and Python's own thresholds search them for a tenth of the time."""


def run() -> None:
    """The console script and ``python -m fx2onnx``: run ``main``, which ends with ``SystemExit``."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    from fx2onnx.cli.main import main  # which imports thousands of containers itself

    try:
        main()
    finally:
        gc.freeze()  # the interpreter's end would search all objects for garbage, a seventh of a short command's time
