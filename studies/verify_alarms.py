"""False alarms: which sound exports does ``verify`` refuse at its defaults, under several seeds.

``python -m studies.verify_alarms [--source zoo|torchvision|timm|hf|programs] [--seeds 3]`` exports every model of the zoo, of
torchvision, one of each timm family, transformers types drawn at random and small programs that are easily taken for wrong, with the sizes that the source proposes as
dynamic, once for each seed with other random weights, and verifies with values of that seed. It goes on where an earlier
call stopped, and writes docs/measured/verify_alarms.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.alarm_programs import PROGRAMS, Function, Program
from studies.coverage_models import Attempt, all_names, attempts
from studies.coverage_worker import Row, Worker, _described, _quiet, answer, read_named_rows

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "verify_alarms.md"
SOURCES = {
    "zoo": "the zoo",
    "torchvision": "torchvision, entries of list_models()",
    "timm": "timm, one architecture a family",
    "hf": "transformers, shrunk config, types drawn at random",
    "programs": "small programs that are easily taken for wrong",
}
PROGRAMS_ARE = (
    "The small programs (`studies/alarm_programs.py`) choose rows by scores, solve systems of equations, round what "
    "decides sizes, compare at thresholds, take logarithms of spectra, and have special functions and orthogonal polynomials."
)
SAMPLE = "## A later run of some models"
LIMIT_S = 600.0
LARGEST_BYTES = 12 << 30
HF_TYPES = 240
"""Types to draw: of so many, two hundred build and run eagerly."""


def names_of(source: str) -> list[str]:
    """The models of a source, in an order that makes the first so many a fair sample."""
    if source == "programs":
        return list(PROGRAMS)
    if source == "zoo":
        from fx2onnx.sources import names

        return list(names(source))
    every = sorted(all_names(source), key=lambda name: zlib.crc32(name.encode()))
    return every[: HF_TYPES if source == "hf" else None]


def _attempts(source: str, name: str) -> Iterator[Attempt]:
    if source != "zoo":
        yield from attempts(source, name)
        return
    from fx2onnx.sources import resolve

    yield "default", lambda: resolve(f"zoo:{name}")


def examine(source: str, name: str, seeds: int) -> Row:
    """The row of one model: one entry a seed. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"source": source, "name": name, "seeds": []}
    if source == "programs":
        with _quiet():
            return row | _of_program(PROGRAMS[name], seeds)
    with _quiet():
        built = _built(row, source, name)
        for seed in range(1, seeds + 1) if built is not None else ():
            try:
                row["seeds"].append(_verified(built, seed))
            except Exception as error:  # whatever a model raises is its row's result
                row["seeds"].append({"seed": seed, "error": _described(error, "export or verify")})
    return row


def _of_program(program: Program, seeds: int) -> Row:
    """One verification a seed, with inputs of it, and whether the fault that the program has is found."""
    import torch

    import fx2onnx
    from fx2onnx import verify

    found: Row = {"seeds": []}
    for seed in range(1, seeds + 1):
        args = program.inputs(torch.Generator().manual_seed(seed))
        try:
            result = fx2onnx.export(Function(program.right), args, dynamic_shapes=tuple(program.axes) or None)
            start = time.perf_counter()
            found["seeds"].append(_entry(verify(result, Function(program.right), args, seeds=(seed,)), seed, start))
            if seed == 1:
                harmed = fx2onnx.export(Function(program.wrong), args, dynamic_shapes=tuple(program.axes) or None)
                found["fault_found"] = not verify(harmed, Function(program.right), args).ok
        except Exception as error:  # an error is its row's result
            found["seeds"].append({"seed": seed, "error": _described(error, "export or verify")})
    return found


def _built(row: Row, source: str, name: str) -> Any:
    """The first form of the model that builds and runs eagerly; None with the error of the last one."""
    import torch

    for label, build in _attempts(source, name):
        try:
            found = build()
            with torch.no_grad():
                found.module(*found.args, **found.kwargs)
        except Exception as error:  # another form of the model may still run
            row["error"] = _described(error, "eager")
            continue
        row.pop("error", None)
        return found if row.setdefault("form", label) else None
    return None


def _verified(built: Any, seed: int) -> Row:
    import fx2onnx
    from fx2onnx import verify
    from fx2onnx.cli.feeds import dynamic_shapes_of

    if seed > 1:
        _shuffle(built.module, seed)
    start = time.perf_counter()
    result = fx2onnx.export(
        built.module,
        built.args,
        kwargs=built.kwargs,
        dynamic_shapes=dynamic_shapes_of(built, "default"),
        bake=built.bake,
        data_branches=built.data_branches,
    )
    exported = time.perf_counter()
    verdict = verify(result, built.module, built.args, built.kwargs, seeds=(seed,), bake=built.bake)
    return _entry(verdict, seed, exported) | {"export_s": round(exported - start, 2)}


def _entry(verdict: Any, seed: int, start: float) -> Row:
    return {
        "seed": seed,
        "ok": verdict.ok,
        "verify_s": round(time.perf_counter() - start, 2),
        "tried": len(verdict.tried),
        "sizes": sum(bool(each.sizes) for each in verdict.tried),
        "by": dict(Counter(line.by for line in verdict.rows if line.by)),
        "notes": verdict.notes[:6],
        "left_out": verdict.left_out[:40],
        "problem": "" if verdict.ok else verdict.describe()[:1500],
    }


def _shuffle(module: Any, seed: int) -> None:
    """Give the parameters further random weights of the same distributions: the numbers of each in another order."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    module.train()  # what some keep of their weights for evaluation, they drop
    module.eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.reshape(-1)[order].reshape(parameter.shape))


def _serve(pipe: Any) -> None:
    answer(pipe, examine)


class AlarmWorker(Worker):
    """One that verifies."""

    serve = staticmethod(_serve)


def is_case(row: Row) -> bool:
    """True if some seed was exported and verified."""
    return any("ok" in each for each in row["seeds"])


def is_alarm(row: Row) -> bool:
    return any(not each.get("ok", True) for each in row["seeds"])


def sweep(source: str, options: argparse.Namespace) -> None:
    known = read_named_rows(options.file)
    names = options.models.split(",") if options.models else names_of(source)
    worker = AlarmWorker(LIMIT_S, LARGEST_BYTES)
    for name in names:
        row = known.get(f"{source}:{name}")
        is_settled = row is not None and not (options.again == "failing" and (is_alarm(row) or not is_case(row)))
        if is_settled and not options.models:
            continue
        start = time.perf_counter()
        row = {"seeds": []} | worker.examine(source, name, options.seeds)
        row["total_s"] = round(time.perf_counter() - start, 1)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        states = " ".join("error" if "error" in each else "ok" if each["ok"] else "ALARM" for each in row["seeds"])
        problem = row.get("error", {}).get("what", "")[:80] or next(
            (each["problem"].splitlines()[0][:160] for each in row["seeds"] if each.get("problem")), ""
        )
        print(f"{source}:{name:<36} {states or '-':<15} {row['total_s']:>6.1f} s {problem}", flush=True)
    worker.close()


def write_page(rows: Sequence[Row], seeds: int) -> None:
    """The page of a whole sweep."""
    packages = ("torch", "torchvision", "timm", "transformers", "onnxruntime")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    lines = [
        "# False alarms of verification",
        "",
        f"Generated by `make verify-alarms` ({versions}). Models with random weights are exported with the sizes that their "
        f"source proposes as dynamic, {seeds} times with other weights, and verified at the defaults with values of that seed, in "
        "the runner and in onnxruntime. A model that does not build or run eagerly in its small form, or that does not "
        "export, is no case.",
        "",
        *_table(rows),
    ]
    _write(lines)


def write_sample(rows: Sequence[Row]) -> None:
    """Write a later run of some of the models as the last section of the page, in place of an earlier such section."""
    before = PAGE.read_text(encoding="utf-8").partition(SAMPLE)[0].rstrip("\n")
    day = time.strftime("%Y-%m-%d")
    text = f"Run of {day}, some models of each source:"
    _write([before, "", SAMPLE, "", text, "", *_table(rows)])


def _write(lines: Sequence[str]) -> None:
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| source | models | tried so far | verified | verifications | refused | sets of inputs, median | at other sizes, median |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for source, title in SOURCES.items():
        found = [row for row in rows if row["source"] == source]
        done = [each for row in found for each in row["seeds"] if "ok" in each]
        refused = sum(not each["ok"] for each in done)
        middle = [_median([each[key] for each in done]) for key in ("tried", "sizes")]
        counts = [len(names_of(source)), len(found), sum(map(is_case, found)), len(done), refused, *middle]
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    faults = [row["fault_found"] for row in rows if "fault_found" in row]
    if faults:
        text = f"Of each of the small programs a faulty file was verified, too: {sum(faults)} of {len(faults)} were refused."
        lines += ["", text, "", PROGRAMS_ARE]
    alarms = [row for row in rows if is_alarm(row)]
    if alarms:
        lines += ["", "## Refused", "", "| model | seeds | first difference |", "|---|---|---|"]
    for row in alarms:
        bad = [each for each in row["seeds"] if not each.get("ok", True)]
        text = bad[0]["problem"].splitlines()[0][:200].replace("|", "/")
        lines.append(f"| {row['source']}:{row['name']} | {', '.join(str(each['seed']) for each in bad)} | {text} |")
    return lines


def _median(numbers: Sequence[int]) -> int:
    return sorted(numbers)[len(numbers) // 2] if numbers else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=tuple(SOURCES), action="append", help="default: all of them")
    parser.add_argument("--models", help="only these names, measured anew")
    parser.add_argument("--again", choices=("no", "failing"), default="no", help="what to measure anew")
    parser.add_argument("--seeds", type=int, default=3, help="verifications of each model")
    parser.add_argument("--file", type=Path, default=Path("/tmp/verify_alarms.jsonl"))
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    parser.add_argument("--sample", action="store_true", help="write what was measured as a section of the page")
    options = parser.parse_args(arguments)
    for source in () if options.page_only else options.source or SOURCES:
        sweep(source, options)
    rows = list(read_named_rows(options.file).values())
    if options.sample:
        write_sample(rows)
    else:
        write_page(rows, options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
