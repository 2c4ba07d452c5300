"""Exports of models of other people's packages with dynamic sizes, compared with PyTorch at other sizes in both
engines.

``python -m studies.third_party.sweep [PART_OF_A_NAME ...]`` installs the packages into build/third_party (not their own
requirements, which would bring another torch), goes on where an earlier call stopped and writes docs/measured/third_party.md.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import importlib
import importlib.metadata
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fx2onnx.sizes.assumptions import Condition, Guard
from studies.third_party import held_out, images, science, signals, tokens
from studies.third_party.spec import OTHER, SAMPLE, Row, tensors
from tools import long_tables

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "measured" / "third_party.md"
PACKAGES = Path(__file__).with_name("packages.txt")
ROWS = [*science.ROWS, *tokens.ROWS, *signals.ROWS, *images.ROWS]
EVERY = [*ROWS, *held_out.ROWS]
LIMIT_S = 60
"""The processor time that a model may take: the machine has other users."""
ERROR = 1e-3
"""The largest error, as a share of the largest number of an output."""
_EAGER = "eager PyTorch: "


def install(folder: Path) -> None:
    """Install what ``packages.txt`` pins and ``folder`` lacks. The rows of a package that fails say so."""
    there = {found.name.lower().replace("_", "-") for found in importlib.metadata.distributions(path=[str(folder)])}
    lines = [line.strip() for line in PACKAGES.read_text(encoding="utf-8").splitlines()]
    missing = [line for line in lines if line and line.partition("==")[0].lower().replace("_", "-") not in there]
    for line in missing:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), line]
        if subprocess.run(command, check=False).returncode:
            print(f"cannot install {line}", flush=True)
    for library in folder.glob("torchaudio/lib/_torchaudio.so"):
        library.unlink()  # it is linked to CUDA's torch; without it torchaudio computes in Python


def measure(row: Row) -> dict[str, Any]:
    """The outcome of one model, in this process."""
    import fx2onnx

    found: dict[str, Any] = {"name": row.name, "sizes": row.sizes()}
    torch.manual_seed(0)
    try:
        sample = row.make(SAMPLE, 0)
        with torch.no_grad():
            row.build().eval()(*sample)  # another one is exported: a run may leave what it computed in a module
        torch.manual_seed(0)
        module = row.build().eval()
        if row.learns:
            with torch.no_grad():
                module(*sample)
    except Exception as error:  # whatever a package raises: the row says that it does not run as it stands
        return found | {"unbuilt": f"{type(error).__name__}: {_line(error)}"}
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            result = fx2onnx.export(module, sample, path, dynamic_shapes=row.axes)
        except fx2onnx.Fx2OnnxError as error:
            where = f" ({Path(error.where.file).name}:{error.where.line})" if error.where else ""
            return found | {"refused": f"{error.code}: {error.what}{where}", "seconds": _since(begun)}
        except Exception as error:  # an export may raise its own errors alone: any other is a wrong row
            return found | {"wrong": f"the export raises {type(error).__name__}: {_line(error)}"}
        found["seconds"] = _since(begun)
        assumed = [each.expression for each in result.report.assumptions if isinstance(each, Condition | Guard)]
        found["conditions"] = list(dict.fromkeys(assumed))[:4]
        others = {**OTHER, **row.other}
        for each in result.report.assumptions:
            if isinstance(each, Condition) and others.get(each.name, 0) not in each.sizes:
                return found | {"refused": f"the file is for {each.expression} alone"}
        return found | _compared(row, module, path)


def _compared(row: Row, module: torch.nn.Module, path: Path) -> dict[str, str]:
    import onnxruntime

    from fx2onnx.runner import InferenceSession

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    inputs = row.make({**OTHER, **row.other}, 1)
    try:
        with torch.no_grad():
            want, again = ([value.numpy() for value in tensors(module(*inputs))] for _ in range(2))
    except Exception as error:  # eager PyTorch takes no such sizes
        return {"unbuilt": f"at the second size, {type(error).__name__}: {_line(error)}"}
    is_repeated = all(
        np.array_equal(*pair, equal_nan=pair[0].dtype.kind in "fc") for pair in zip(want, again, strict=True)
    )
    for name, engine in (("onnxruntime", onnxruntime.InferenceSession), ("the runner", InferenceSession)):
        try:
            session = engine(path, options) if name == "onnxruntime" else engine(path)
            names = [value.name for value in session.get_inputs()]
            every = dict(zip([f"inputs_{number}" for number in range(len(inputs))], inputs, strict=True))
            by_place = every if set(names) <= every.keys() else dict(zip(names, inputs, strict=False))
            got = session.run(None, {key: by_place[key].numpy() for key in names})
        except Exception as error:  # an engine refuses
            return {"wrong": f"{name} raises: {_line(error)}"}
        if len(got) != len(want):
            return {"wrong": f"{name} gives {len(got)} outputs of {len(want)}"}
        for one, other in zip(got, want, strict=True):
            if one.shape != other.shape:
                return {"wrong": f"{name} gives the shape {one.shape}, PyTorch {other.shape}"}
            if (
                is_repeated
                and one.size
                and not np.allclose(one, other, rtol=ERROR, atol=1e-5 + ERROR * _largest(other), equal_nan=True)
            ):
                return {
                    "wrong": f"{name} is off by {_largest(one.astype(float) - other.astype(float)):.1e} of {_largest(other):.1e}"
                }
    return {"right": "right"} | ({} if is_repeated else {"conditions": ["forward draws random numbers: shapes alone"]})


def _largest(values: Any) -> float:
    finite = np.abs(np.asarray(values, dtype=np.float64))
    finite = finite[np.isfinite(finite)]
    return float(finite.max()) if finite.size else 0.0


def sweep(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The outcome of each model. Packages that the forks share are imported once, before them."""
    torch.set_num_threads(1)
    measure(Row("torch", "Linear", lambda: torch.nn.Linear(3, 4), ("batch 3",)))
    imported: set[str] = set()
    for row in rows:
        if row.package not in imported:
            imported.add(row.package)
            with contextlib.suppress(Exception):  # which the row says itself
                row.build()
        yield in_a_process(row)


def in_a_process(row: Row) -> dict[str, Any]:
    """``measure`` in a fork of this process, which the system ends after ``LIMIT_S``."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        signal.alarm(10 * LIMIT_S)  # a package's threads, of which a fork has none, may let it wait for ever
        with contextlib.suppress(BaseException), open(os.devnull, "w") as silent:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
            warnings.simplefilter("ignore")
            os.write(write, json.dumps(measure(row)).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if data:
        found: dict[str, Any] = json.loads(data)
        return found
    is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM)
    said = {"refused": f"takes more than {LIMIT_S} s"} if is_slow else {"wrong": "the process died"}
    return {"name": row.name, "sizes": row.sizes(), **said}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def _since(begun: float) -> float:
    return round(time.process_time() - begun, 1)


def write_page(found: Mapping[str, Mapping[str, Any]]) -> None:
    lines = [
        "# Models of other packages",
        "",
        f"Generated by `make sweep-third-party` (torch {torch.__version__}). Each model is exported with the named sizes dynamic, "
        f"in a process of its own that may compute for {LIMIT_S} s. The file then runs at other sizes in onnxruntime and in the runner, "
        f"beside eager PyTorch. An output may be off by 1e-5, and by {ERROR} of its largest number.",
        "",
        _counted(found, ROWS),
        "",
        f"Packages that were tried once the others were right (`studies/third_party/held_out.py`), with what has been fixed since, on 2026-12-01: {_counted(found, held_out.ROWS)} {held_out.BEFORE}",
        "",
        "| package | model | dynamic sizes | result | CPU s |",
        "|---|---|---|---|---:|",
    ]
    rows = [(row, found[row.name]) for row in sorted(EVERY, key=lambda row: row.name.lower()) if row.name in found]
    for row, result in rows:
        said = result.get("wrong") or result.get("refused") or "right"
        if "unbuilt" in result:
            said = f"{_EAGER}{result['unbuilt']}"
        if said == "right" and result.get("conditions"):
            said = f"right where {', '.join(result['conditions'])}"
        cells = (
            f"{row.package} {result.get('version', '')}",
            row.model,
            ", ".join(result["sizes"]),
            said,
            str(result.get("seconds", "")),
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    lines += ["", "## Refused", "", "| model | why |", "|---|---|"]
    refused = [(row, result["refused"].replace("|", "/")) for row, result in rows if "refused" in result]
    lines += [f"| {row.package} {row.model} | {why} |" for row, why in refused]
    long_tables.write_page(PAGE, "\n".join(lines) + "\n")


def _of_the_page() -> dict[str, dict[str, Any]]:
    """The results on the page, in the form of those that are measured."""
    found = {}
    with PAGE.with_name("third_party_package.csv").open(encoding="utf-8", newline="") as stream:
        for package, model, sizes, said, seconds in [*csv.reader(stream)][1:]:
            name, _, version = package.partition(" ")
            result: dict[str, Any] = {
                "name": f"{name}: {model}",
                "version": version,
                "sizes": sizes.split(", ") if sizes else [],
            }
            if said.startswith("right"):
                result |= {
                    "right": "right",
                    "conditions": [where] if (where := said.removeprefix("right").removeprefix(" where ")) else [],
                }
            elif said.startswith(_EAGER):
                result["unbuilt"] = said.removeprefix(_EAGER)
            else:
                result["refused" if re.match(r"E\d{3}: |takes more|the file is for", said) else "wrong"] = said
            found[result["name"]] = result | ({"seconds": seconds} if seconds else {})
    return found


def _counted(found: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """The sentences on the results of these rows."""
    done = [(row, found[row.name]) for row in rows if row.name in found]
    count = Counter(next(word for word in ("right", "refused", "wrong", "unbuilt") if word in each) for _, each in done)
    ran = [row.package for row, each in done if "unbuilt" not in each]
    return (
        f"{len(ran)} models of {len(set(ran))} packages: {count['right']} right ({count['right'] / max(len(ran), 1):.1%}), "
        f"{count['refused']} refused, {count['wrong']} wrong. {count['unbuilt']} more do not run in eager PyTorch in this environment."
    )


@functools.cache
def _versions() -> dict[str, str]:
    """The versions of all packages that this process can import, by the name that Python imports."""
    names = importlib.metadata.packages_distributions()
    return {name: importlib.metadata.version(found[0]) for name, found in names.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names, measured anew; default: what is not measured yet")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "third_party", help="of the packages and rows")
    parser.add_argument("--no-install", action="store_true", help="take the packages that are there")
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    packages, file = options.folder / "packages", options.folder / "rows.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    measured = {each["name"]: each for each in map(json.loads, lines)}
    done = _of_the_page() | measured
    if not (options.no_install or options.page_only):
        install(packages)
    sys.path.append(str(packages))
    if not options.page_only:
        versions = _versions()
        wanted = [row for row in EVERY if any(part in row.name for part in options.names)] if options.names else EVERY
        for found in sweep([row for row in wanted if options.names or row.name not in measured]):
            done[found["name"]] = found = found | {"version": versions.get(found["name"].partition(":")[0], "")}
            print(json.dumps(found)[:300], flush=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(found) + "\n")
    write_page(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
