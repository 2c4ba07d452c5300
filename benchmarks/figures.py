"""The two founding figures with today's numbers: export time over input tokens, and flame graphs of both exporters.

``python -m benchmarks.figures [--tokens 32,64,...] [--rounds 3] [--folder DIR]`` measures T5-small and writes
``docs/measured/figures/*.svg``, ``docs/measured/figures/t5_small.json`` and the numbers of ``docs/measured/figures.md``. With ``--redraw`` it draws
from the JSON file and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import machine
from fx2onnx.report.tree import flame, phases

SOURCE = "zoo:t5_small"
TOKENS = (32, 64, 128, 256, 512, 1024, 2048)
FOLDER = Path(__file__).parents[1] / "docs" / "measured" / "figures"
PAGE = FOLDER.parent / "figures.md"
NAMES = {"fx2onnx": "fx2onnx", "torch": "torch.onnx.export"}
COLOURS = {"fx2onnx": "#2f6fe0", "torch": "#d9822b"}
PHASE_COLOURS = {
    "registry": "#d9c36a",
    "capture": "#8fb8fb",
    "decompose": "#bfaaf7",
    "lower": "#8ad3b8",
    "translate": "#8ad3b8",
    "optimize": "#f6c37f",
    "save": "#f1a0b1",
}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

LEAST_SHARE = 0.003
"""Flames below this share of the export are not drawn."""


def measured(tokens: tuple[int, ...], rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of every run at every size, and the merged flames of a run nearest the median."""
    from fx2onnx import sources
    from fx2onnx.cli.profile_measure import ProfileJob, Sweep, measure, measure_sweep, with_size

    source = sources.resolve(SOURCE)
    sweep = Sweep("input_ids", (1,), tokens)
    path = folder / "model.onnx"
    names = list(NAMES)
    exports, _ = measure(names, ProfileJob(source, path), rounds, print)
    for export in exports:
        if export.error and source.module.config._attn_implementation != "eager":
            source.module.set_attn_implementation("eager")  # torch.onnx.export fails on T5's fused attention
            exports, _ = measure(names, ProfileJob(source, path), rounds, print)
    jobs = {size: ProfileJob(with_size(source, sweep, size), path) for size in tokens}
    series = measure_sweep("input_ids", names, jobs, rounds, print)
    return {
        "source": SOURCE,
        "attention": source.module.config._attn_implementation,
        "machine": machine.describe(),
        "rounds": rounds,
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[2],
        "tokens": [[point.exporter, point.value, point.seconds, point.error] for point in series.points],
        "exports": [
            {
                "exporter": export.exporter,
                "median": export.median,
                "error": export.error,
                "phases": [[row.name, row.seconds] for row in phases(export)],
                "flame": flame(export.events).as_dict(LEAST_SHARE * export.events.seconds) if export.events else None,
            }
            for export in exports
        ],
    }


def draw_tokens(data: dict[str, Any], path: Path) -> None:
    """Figure 3: export time over the number of input tokens: the fastest run, with all runs as points."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    for name, label in NAMES.items():
        points = [(tokens, seconds) for other, tokens, seconds, _ in data["tokens"] if other == name and seconds]
        axes.plot(
            [tokens for tokens, _ in points],
            [min(seconds) for _, seconds in points],
            marker="o",
            linewidth=2.2,
            color=COLOURS[name],
            label=label,
        )
        for tokens, seconds in points:
            axes.plot([tokens] * len(seconds), seconds, ".", markersize=5, alpha=0.45, color=COLOURS[name])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({tokens for _, tokens, _, _ in data["tokens"]})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("input tokens")
    axes.set_title("T5-small: whole export to a finished file", loc="left", fontsize=11)
    axes.grid(which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _save(figure, path)


def draw_flames(data: dict[str, Any], path: Path) -> None:
    """Figure 4: what both exporters spend their time on, at one scale; the faster one's graph is there again, enlarged."""
    import matplotlib.pyplot as plt

    flames = {NAMES[export["exporter"]]: export["flame"] for export in data["exports"] if export["flame"]}
    longest = max(node["value"] for node in flames.values())
    drawn = [(f"{name}: {node['value']:.3g} s", node, longest) for name, node in flames.items()]
    drawn += [
        (f"{name}, {longest / node['value']:.0f} times as wide", node, node["value"])
        for name, node in flames.items()
        if node["value"] < longest
    ]
    heights = [_depth(node) for _, node, _ in drawn]
    figure, panels = plt.subplots(
        len(drawn), 1, figsize=(11, 0.28 * sum(heights) + 1.2 * len(drawn)), height_ratios=heights, squeeze=False
    )
    for axes, (title, node, width), height in zip(panels[:, 0], drawn, heights, strict=True):
        _draw_flame(axes, node, 0.0, 0, width, "")
        axes.set_xlim(0, width)
        axes.set_ylim(height - 0.5, -0.5)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(title, loc="left", fontsize=11)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    _save(figure, path)


def _depth(node: dict[str, Any]) -> int:
    return 1 + max((_depth(child) for child in node.get("children", ())), default=0)


def _draw_flame(axes: Any, node: dict[str, Any], left: float, depth: int, total: float, phase: str) -> None:
    colour = PHASE_COLOURS.get(phase, "#c9d1dc")
    axes.barh(depth, node["value"], left=left, height=0.96, color=colour, edgecolor="white", linewidth=0.5)
    letters = int(node["value"] / total * 150)
    if letters >= 4:
        name = node["name"] if len(node["name"]) <= letters else node["name"][: letters - 1] + "…"
        axes.text(left + 0.002 * total, depth, name, va="center", ha="left", fontsize=7.5, clip_on=True)
    for child in node.get("children", ()):
        _draw_flame(axes, child, left, depth + 1, total, phase or child["name"])
        left += child["value"]


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def table(data: dict[str, Any]) -> str:
    """The numbers behind the figures, as the page has them."""
    sizes = sorted({tokens for _, tokens, _, _ in data["tokens"]})
    found = {(name, tokens): (seconds, error) for name, tokens, seconds, error in data["tokens"]}
    busy = data["load"] > data["cpus"]
    lines = [
        f"T5-small ({data['attention']} attention in both), {data['machine']}.",
        f"Fastest of {data['rounds']} runs, and their median; whole call with the file written, one process, warm, all",
        "sizes and both exporters in turn. (Other processes can only add time, so the fastest run is the line of the figure.)",
        f"Load of the machine over the last 15 minutes: {data['load']:.1f} on {data['cpus']} cores"
        + (": busy with other work, so what differs between sizes here is mostly noise." if busy else "."),
        "",
        "| input tokens | fx2onnx s: fastest | median | torch.onnx.export s: fastest | median | times faster (fastest) |",
        "|---|---|---|---|---|---|",
    ]
    fastest: dict[str, list[float]] = {name: [] for name in NAMES}
    for size in sizes:
        cells = []
        for name in NAMES:
            seconds, error = found[name, size]
            if seconds:
                fastest[name].append(min(seconds))
                cells += [f"{min(seconds):.3f}", f"{statistics.median(seconds):.3f}"]
            else:
                cells += [error[:60], ""]
        both = all(found[name, size][0] for name in NAMES)
        cells.append(f"{fastest['torch'][-1] / fastest['fx2onnx'][-1]:.1f}" if both else "")
        lines.append(f"| {size} | {' | '.join(cells)} |")
    lines += ["", "Slowest size over fastest size: "]
    lines[-1] += ", ".join(
        f"{NAMES[name]} {max(values) / min(values):.2f}" for name, values in fastest.items() if values
    )
    lines[-1] += "."
    lines += ["", "| phase | " + " | ".join(f"{NAMES[e['exporter']]} s | share" for e in data["exports"]) + " |"]
    lines.append("|---" * (1 + 2 * len(data["exports"])) + "|")
    names = list(dict.fromkeys(name for export in data["exports"] for name, _ in export["phases"]))
    for name in names:
        cells = []
        for export in data["exports"]:
            total = sum(seconds for _, seconds in export["phases"]) or 1.0
            seconds = dict(export["phases"]).get(name)
            cells += ["", ""] if seconds is None else [f"{seconds:.3f}", f"{seconds / total:.0%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    parser.add_argument("--redraw", action="store_true")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / "t5_small.json"
    if not options.redraw:
        with tempfile.TemporaryDirectory(prefix="fx2onnx-figures-", dir=options.folder) as folder:
            data = measured(tuple(map(int, options.tokens.split(","))), options.rounds, Path(folder))
        file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    data = json.loads(file.read_text(encoding="utf-8"))
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fx2onnx", "font.family": "sans-serif"})
    draw_tokens(data, FOLDER / "tokens.svg")
    draw_flames(data, FOLDER / "flames.svg")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(data)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
