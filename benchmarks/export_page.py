"""The page and the plot of ``benchmarks.export_time``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.export_time import Row

Cell = str | float | None

GRAPH = ("model", "fx2onnx s", "dynamo s", "times faster", "dynamic: fx2onnx s", "dynamo s", "times faster")
WHOLE = (
    *(
        "model",
        "MB",
        "nodes",
        "dynamo's nodes",
        "fx2onnx s",
        "dynamo s",
        "times faster",
        "TorchScript s",
        "times faster",
    ),
    "speed of writing by a plain write's",
)


def page(rows: Sequence[Row], machine: str, rounds: int, path: Path | None) -> str:
    """The page's Markdown; written to ``path``, with the plot beside it, where one is given."""
    text = f"""# Export time

`make bench` writes this page. {machine}. One process, warm, all variants of a model in turn, medians of {rounds}; seconds on
this machine mean little, the ratios are the claim. Files go to a disk.

## Whole export, to the finished file with its weights

{_table(WHOLE, [_whole(row) for row in rows])}

{_summary(rows, [("ours", "dynamo"), ("ours", "torchscript")])}
{_writing(rows)}

## Graph work alone, no file

{_table(GRAPH, [_graph(row) for row in rows])}

{_summary(rows, [("ours graph", "dynamo graph"), ("ours dynamic", "dynamo dynamic")])}
"""
    failures = [f"- {row.label}, {variant}: {why}" for row in rows for variant, why in row.failures.items()]
    if failures:
        text += "\nFailed and left out:\n\n" + "\n".join(failures) + "\n"
    if path is not None:
        plot = path.with_suffix(".svg")
        _plot(rows, plot)
        found = {row.label: row.times_faster("ours", "dynamo") for row in rows if row.label in SHOWN}
        plot_factors({name: factor for name, factor in found.items() if factor}, plot.with_name("speed.svg"))
        text += f"\n![times faster than torch.onnx.export, by model]({plot.name})\n"
        path.write_text(text)
    return text


def _whole(row: Row) -> list[Cell]:
    return [
        *(row.label, f"{row.file_bytes / 1e6:.1f}", str(row.nodes), str(row.their_nodes)),
        *(row.median("ours"), row.median("dynamo"), _times(row, "ours", "dynamo")),
        *(row.median("torchscript"), _times(row, "ours", "torchscript"), row.of_plain()),
    ]


def _graph(row: Row) -> list[Cell]:
    return [
        *(row.label, row.median("ours graph"), row.median("dynamo graph"), _times(row, "ours graph", "dynamo graph")),
        *(row.median("ours dynamic"), row.median("dynamo dynamic"), _times(row, "ours dynamic", "dynamo dynamic")),
    ]


def _times(row: Row, ours: str, theirs: str) -> str | None:
    ratio = row.times_faster(ours, theirs)
    return None if ratio is None else f"{ratio:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    lines = [head, ["---"] * len(head), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else f"{cell:.3f}" if cell < 1 else f"{cell:.2f}"


def _summary(rows: Sequence[Row], pairs: Sequence[tuple[str, str]]) -> str:
    lines = []
    for ours, theirs in pairs:
        ratios = [ratio for row in rows if (ratio := row.times_faster(ours, theirs)) is not None]
        if ratios:
            lines.append(
                f"{ours} against {theirs}: median {statistics.median(ratios):.1f} times faster, least {min(ratios):.1f}, "
                f"most {max(ratios):.1f} ({len(ratios)} models)."
            )
    return "\n".join(lines)


def _writing(rows: Sequence[Row]) -> str:
    speeds = [speed for row in rows if (speed := row.of_plain()) is not None]
    return (
        f"Writing the bytes of the files (weights and graph, without making the graph's message) by one plain sequential "
        f"write of as many: median {statistics.median(speeds):.2f} of its speed, least {min(speeds):.2f}."
    )


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Grouped bars: times faster, by model."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    series = {
        "whole export, to dynamo": ("ours", "dynamo"),
        "whole export, to TorchScript": ("ours", "torchscript"),
        "graph work, to dynamo": ("ours graph", "dynamo graph"),
        "graph work, dynamic shapes, to dynamo": ("ours dynamic", "dynamo dynamic"),
    }
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(rows) + 1.5), layout="constrained")
    height = 0.8 / len(series)
    for index, (label, (ours, theirs)) in enumerate(series.items()):
        widths = [row.times_faster(ours, theirs) or 0 for row in rows]
        axes.barh([at + index * height for at in range(len(rows))], widths, height, label=label)
    axes.set_yticks([at + 0.4 - height / 2 for at in range(len(rows))], [row.label for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("times faster than torch.onnx.export")
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


SHOWN = (
    "resnet50", "vit_b_16", "yolov5", "bert_base_mlm", "gpt2", "t5_small (eager attention)", "llama_small",
    "whisper_tiny",
)  # fmt: skip
"""Models of the small figure, which the README has."""


def plot_factors(factors: Mapping[str, float], path: Path) -> None:
    """One bar a model: how many times faster than torch.onnx.export, written beside it."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.32 * len(factors) + 0.5), layout="constrained")
    names = [name.partition(" (")[0] for name in factors]
    axes.bar_label(axes.barh(names, [*factors.values()], 0.7, color="#2f6fb5"), fmt="%.0fx", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("times faster than torch.onnx.export")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
