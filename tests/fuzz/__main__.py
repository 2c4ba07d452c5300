"""``python -m tests.fuzz``: so many cases of each target, in a process of its own with limits of time and memory."""

from __future__ import annotations

import argparse
import collections
import ctypes
import faulthandler
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError
from tests.fuzz import SLOW, TARGETS, models
from tests.fuzz.watch import watched

SECONDS = 20.0
"""For one case, on a busy machine."""
MORE_BYTES = 4 << 30
"""The address space, beyond what the imports took."""


class Hangs(BaseException):
    """Not an Exception: nobody's ``except`` is to make an error of it."""


def _alarm(*_: Any) -> None:
    raise Hangs


def outcome(target: str, seed: int, number: int, folder: Path) -> str:
    """``read``, the code of the error, or a fault, which begins with ``!``."""
    rng = random.Random(f"{target} {seed} {number}")
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    with watched(folder) as seen:
        try:
            TARGETS[target](rng, folder)
            found = "read"
        except UserError as error:
            found = error.code if error.render().encode() else "!"  # it can be printed
        except BaseException as error:  # what is not fx2onnx's own is what this run is looking for
            where = [frame for frame in traceback.extract_tb(error.__traceback__) if "fx2onnx" in frame.filename]
            place = f"{where[-1].filename}:{where[-1].lineno}" if where else ""
            found = f"! {type(error).__name__}: {str(error)[:200]!r} {place}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return f"! {seen[0]}" if seen else found


def run(target: str, seed: int, numbers: range, current: Any, results: Any) -> None:
    """In a child process. ``current`` is the case that runs, for the parent to know should this process die."""
    signal.signal(signal.SIGALRM, _alarm)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))
    counts: collections.Counter[str] = collections.Counter()
    faults = []
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "case"
        for number in numbers:
            current.value = number
            folder.mkdir()
            faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # where native code hangs
            found = outcome(target, seed, number, folder)
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(folder)
            counts[found.split(" ")[0]] += 1
            faults += [(number, found)] if found.startswith("!") else []
    results.send((counts, faults))


def run_target(target: str, seed: int, numbers: range) -> int:
    """The number of faults; each is printed."""
    context = multiprocessing.get_context("fork")
    current = context.Value(ctypes.c_long, -1)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run, args=(target, seed, numbers, current, sender))
    child.start()
    sender.close()
    try:
        counts, faults = receiver.recv()
    except EOFError:
        counts, faults = {}, [(current.value, "! the process died")]
    child.join()
    for number, found in faults:
        print(f"{target} --seed {seed} --first {number} --cases 1: {found}", flush=True)
    print(f"{target}: {len(numbers)} cases, {dict(counts)}, {len(faults)} faults", flush=True)
    return len(faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--target", choices=[*TARGETS], action="append", help="all unless given")
    parser.add_argument("--light", action="store_true", help="without the node cases of the onnx wheel")
    args = parser.parse_args()
    if not args.light:
        models.make_node_cases()
    faults = 0
    for target in args.target or TARGETS:
        count = -(-args.cases // SLOW.get(target, 1))
        faults += run_target(target, args.seed, range(args.first, args.first + count))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
