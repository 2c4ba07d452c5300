"""Nodes and onnxruntime latency of our files against ``torch.onnx.export(dynamo=True)`` after its optimizer.

    python -m benchmarks.graph_economy [--models a,b] [--rounds 15] [--opset 20] [--threads 1]

Latencies are medians of interleaved runs of both files on the same feeds; below 1 ours is faster. Where
``torch.onnx.export`` fails, it is tried again with transformers' eager attention (marked ``+``); where it fails then, too,
ours is measured against our own graph without optimization (marked ``*``).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks import machine


def quietly(function: Any, *args: Any, **keywords: Any) -> Any:
    """The call without the chatter of the exporters."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return function(*args, **keywords)


def their_file(source: Any, path: Path, opset: int) -> tuple[str, str]:
    """Write their file. Returns a mark (see above) and why they failed, if they did."""
    failure = _their_file(source, path, opset)
    if not failure:
        return "", ""
    choose = getattr(source.module, "set_attn_implementation", None)
    if choose is not None:
        before = source.module.config._attn_implementation
        choose("eager")
        second = _their_file(source, path, opset)
        choose(before)
        if not second:
            return "+", failure
    return "*", failure


def _their_file(source: Any, path: Path, opset: int) -> str:
    import torch

    try:
        quietly(
            torch.onnx.export, source.module, source.args, str(path), kwargs=source.kwargs, dynamo=True,
            opset_version=opset,
        )  # fmt: skip
    except Exception as cause:  # whatever their exporter raises is their result
        return f"{type(cause.__cause__ or cause).__name__}: {cause.__cause__ or cause}".splitlines()[0]
    return ""


def session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def node_count(path: Path) -> int:
    import onnx

    return len(onnx.load(str(path), load_external_data=False).graph.node)


def feeds_for(runner: Any, source: Any) -> dict[str, Any]:
    """The example's tensors by the order of the inputs, which both exporters keep."""
    import torch

    leaves = [
        leaf.numpy()
        for leaf in torch.utils._pytree.tree_leaves((source.args, source.kwargs))
        if isinstance(leaf, torch.Tensor)
    ]
    return {value.name: leaf for value, leaf in zip(runner.get_inputs(), leaves, strict=True)}


def latency_ratio(ours: Any, theirs: Any, source: Any, rounds: int) -> tuple[float, float, float]:
    """Median milliseconds of both and the median of the ratios of each pair."""
    pairs = []
    runners = [(ours, feeds_for(ours, source)), (theirs, feeds_for(theirs, source))]
    for round_number in range(rounds + 2):
        spent = [0.0, 0.0]
        for index in (0, 1) if round_number % 2 else (1, 0):
            runner, feeds = runners[index]
            start = time.perf_counter()
            runner.run(None, feeds)
            spent[index] = time.perf_counter() - start
        if round_number >= 2:
            pairs.append(spent)
    mine, other = (statistics.median(pair[index] for pair in pairs) * 1e3 for index in (0, 1))
    return mine, other, statistics.median(pair[0] / pair[1] for pair in pairs)


def measure(name: str, rounds: int, opset: int, threads: int, folder: Path) -> dict[str, Any]:
    import fx2onnx
    from models_zoo.registry import build

    source = build(name)
    source.module.eval()
    paths = {kind: folder / f"{kind}.onnx" for kind in ("ours", "plain", "theirs")}
    for _ in range(2):  # the second is warm
        result = quietly(
            fx2onnx.export, source.module, source.args, paths["ours"], kwargs=source.kwargs, opset_version=opset
        )
    quietly(
        fx2onnx.export, source.module, source.args, paths["plain"], kwargs=source.kwargs, opset_version=opset,
        optimize=False,
    )  # fmt: skip
    mark, failure = their_file(source, paths["theirs"], opset)
    other = paths["plain"] if mark == "*" else paths["theirs"]
    mine_ms, other_ms, ratio = latency_ratio(session(paths["ours"], threads), session(other, threads), source, rounds)
    row = {
        "model": name + mark,
        "plain": node_count(paths["plain"]),
        "ours": node_count(paths["ours"]),
        "theirs": "-" if mark == "*" else node_count(paths["theirs"]),
        "optimise_ms": result.report.phases.get("optimize", 0.0) * 1e3,
        "ours_ms": mine_ms,
        "other_ms": other_ms,
        "ratio": ratio,
        "failure": failure,
    }
    for path in folder.iterdir():
        path.unlink()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="comma-separated zoo names; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    machine.unpinned()
    from models_zoo.registry import names

    print(machine.describe(), f"opset {arguments.opset}, {arguments.threads} thread(s), {arguments.rounds} rounds")
    print(f"{'model':<20} {'plain':>6} {'ours':>6} {'theirs':>6}  {'optimise':>9} {'ours':>9} {'other':>9}  ratio")
    failures = []
    for name in arguments.models.split(",") if arguments.models else names():
        with tempfile.TemporaryDirectory(prefix="graph_economy_") as folder:
            row = measure(name, arguments.rounds, arguments.opset, arguments.threads, Path(folder))
        print(
            f"{row['model']:<20} {row['plain']:>6} {row['ours']:>6} {row['theirs']:>6}  {row['optimise_ms']:>6.1f} ms "
            f"{row['ours_ms']:>6.2f} ms {row['other_ms']:>6.2f} ms  {row['ratio']:.3f}",
            flush=True,
        )
        if row["failure"]:
            failures.append(f"{name}: torch.onnx.export fails: {row['failure'][:160]}")
    print(*failures, sep="\n")


if __name__ == "__main__":
    main()
