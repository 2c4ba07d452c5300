"""The long run of the fuzzing: ``make fuzz``, or ``python tests/runner/fuzz.py --count 20000 --seed 0``.

Each file is a node case with random edits of its bytes or of its structure, loaded and run in a process whose memory is
limited. Misbehaviour is: an exception that is not fx2onnx's, a crash, more than ``SECONDS`` for one file, and more than
``LIMIT_BYTES`` (of which the model may ask for test_hostile.LIMIT_BYTES a tensor). Such files are kept in ``--keep``.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS = 20.0
LIMIT_BYTES = 4 << 30
BATCH = 500


def sources() -> list[bytes]:
    from kernel_cases import CASES, fused_convolution, gradient, sequences
    from test_backend_cases import cases
    from test_hostile import seeds

    models = [case.model for case in cases().values() if case.model is not None]
    models += [case.model()[0] for case in CASES]
    models += [make()[0] for make in (fused_convolution, gradient, sequences)]
    return [*seeds(), *(model.SerializeToString() for model in models)]


def file_of(number: int, given: list[bytes]) -> bytes:
    """The file of that number: the same at each run."""
    from test_hostile import mutated, shuffled

    rng = random.Random(number)
    source = given[rng.randrange(len(given))]
    data = mutated(source, rng) if rng.random() < 0.4 else shuffled(source, rng)
    return shuffled_safely(data, rng) if rng.random() < 0.3 else data


def shuffled_safely(data: bytes, rng: random.Random) -> bytes:
    """A second edit of structure, where the bytes still parse."""
    from google.protobuf.message import DecodeError
    from test_hostile import shuffled

    try:
        return shuffled(data, rng)
    except (DecodeError, ValueError, TypeError, UnicodeDecodeError):
        return data


def work(numbers: range, given: list[bytes], results: Any) -> None:
    """In a child process: (number, 'start') before each file, then (number, outcome)."""
    from test_hostile import outcome

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    for number in numbers:
        results.send((number, "start"))
        try:
            found = outcome(file_of(number, given))
        except BaseException as error:  # what is not fx2onnx's own is what this run is looking for
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = f"! {type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
        results.send((number, found))
    results.send((-1, "done"))


def run_batch(numbers: range, given: list[bytes], counts: collections.Counter[str]) -> list[tuple[int, str]]:
    """The faults of these files; a process that dies or hangs is replaced and goes on with the next file."""
    faults: list[tuple[int, str]] = []
    context = multiprocessing.get_context("fork")
    while numbers:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=work, args=(numbers, given, sender))
        child.start()
        sender.close()
        current, outcome = numbers[0], "died before the first file"
        while True:
            if not receiver.poll(SECONDS):
                outcome = f"! more than {SECONDS:.0f} s"
                child.kill()
                break
            try:
                current, outcome = receiver.recv()
            except EOFError:
                child.join()
                outcome = f"! the process died with {child.exitcode}"
                break
            if outcome == "done":
                return faults
            if outcome != "start":
                counts[outcome.split(" ")[0]] += 1
                if outcome.startswith("!"):
                    faults.append((current, outcome))
        child.join()
        faults.append((current, outcome))
        counts["!"] += 1
        numbers = range(current + 1, numbers.stop)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first file")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="where misbehaving files go")
    args = parser.parse_args()
    given = sources()
    import fx2onnx.runner  # noqa: F401  (imported once, before the processes are made)

    counts: collections.Counter[str] = collections.Counter()
    faults: list[tuple[int, str]] = []
    end = args.seed + args.count
    for start in range(args.seed, end, BATCH):
        for number, outcome in run_batch(range(start, min(start + BATCH, end)), given, counts):
            faults.append((number, outcome))
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{number}.onnx").write_bytes(file_of(number, given))
            print(f"file {number}: {outcome}", flush=True)
    print(f"{sum(counts.values())} files, {dict(counts)}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
