"""``python -m studies.sabotage [--models a,b] [--harms x,y] [--seeds N] [--locate] [--rows FILE] [--write PAGE]``: harm
exported files in every known way and ask ``fx2onnx.verify`` at its defaults; ``--locate``: also which node is wrong;
``--page-only``: write the page of the rows in a file, which several runs may have written, each for some of the models.

A harmed file counts where some feed of a wide choice, drawn apart from those of the verifier, gives another result than
the sound file in the bundled runner, by more than a thousandth of the largest number of its row.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.sabotage.architectures import ARCHITECTURES, Architecture, feeds
from studies.sabotage.harms import HARMS
from studies.sabotage.rows import Row, read_rows, write_later
from studies.sabotage.sketch import Site, Sketch

FEEDS = 24
CHANGED = 1e-3


class Subject:
    """One architecture, exported, with what its sound file gives for every feed."""

    def __init__(self, architecture: Architecture, folder: str) -> None:
        import onnx

        import fx2onnx

        self.name = architecture.name
        self.module, self.kwargs, self.shapes = architecture.build()
        path = os.path.join(folder, f"{architecture.name}.onnx")
        self.result = fx2onnx.export(self.module, (), path, kwargs=self.kwargs, dynamic_shapes=self.shapes)
        self.proto = onnx.load(path)
        self.sample = {name: value.numpy() for name, value in self.kwargs.items()}
        self.feeds = [
            {name: value.numpy() for name, value in feed.items()}
            for feed in feeds(architecture, self.kwargs, self.shapes, self._runs, FEEDS)
        ]
        self.sound = list(_results(self.proto.SerializeToString(), self.feeds))

    def _runs(self, feed: dict[str, torch.Tensor]) -> bool:
        try:
            with torch.no_grad():
                self.module(**feed)
        except Exception:  # such sizes or numbers are not for this model
            return False
        return True

    def shown_by(self, harmed: bytes) -> tuple[str, int]:
        """The way in which the first feed shows the harm ("" for none), and the number of that feed."""
        place = 0
        try:
            for place, (one, other) in enumerate(zip(_results(harmed, self.feeds), self.sound, strict=True)):
                if differs(one, other):
                    return f"feed {place}" if place else "sample", place
        except Exception as error:  # of any kind that a broken file brings up
            return f"fails: {type(error).__name__}", 0
        return "", 0


def _results(model: bytes, all_feeds: list[dict[str, Any]]) -> Iterator[list[Any]]:
    from fx2onnx.runner import InferenceSession

    session = InferenceSession(model)
    taken = {each.name for each in session.get_inputs()}
    for feed in all_feeds:
        yield session.run(None, {name: value for name, value in feed.items() if name in taken})


def differs(one: list[Any], other: list[Any]) -> bool:
    """True if a user could see the difference."""
    for got, want in zip(one, other, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            return True
        if want.dtype.kind != "f":
            if not np.array_equal(got, want):
                return True
            continue
        if not np.array_equal(np.isfinite(got), np.isfinite(want)):
            return True
        finite = np.where(np.isfinite(want), want, 0)
        gap = np.abs(np.where(np.isfinite(got), got, 0) - finite)
        scale = np.abs(finite).max(-1, keepdims=True, initial=0) if want.ndim else np.abs(finite)
        if np.any(gap > CHANGED * np.maximum(scale, 1e-6)):
            return True
    return False


def mutants(subject: Subject, harms: list[str], seeds: int) -> Iterator[tuple[str, int, Site, bytes]]:
    for name in harms:
        for seed in range(seeds):
            sketch = Sketch.of(subject.proto, seed * 1009 + len(name), subject.sample)
            site = HARMS[name](sketch)
            if site is not None:
                yield name, seed, site, sketch.written()


def examine(
    subject: Subject, folder: str, harm: str, seed: int, site: Site, harmed: bytes, options: argparse.Namespace
) -> Row:
    from fx2onnx import verify

    row: Row = {"model": subject.name, "harm": harm, "seed": seed, "site": site.text, "values": site.values}
    row["shown_by"], feed = subject.shown_by(harmed)
    path = os.path.join(folder, "harmed.onnx")
    Path(path).write_bytes(harmed)
    start = time.perf_counter()
    try:
        verdict = verify(path, subject.module, (), subject.kwargs)
        row["caught"] = not verdict.ok
        if not verdict.ok:
            worst = verdict.worst()
            row["why"] = "" if worst is None else f"{worst.engine} {worst.inputs} {worst.output}: {worst.problem or worst.max_abs_error}"  # fmt: skip
    except Exception as error:  # a refusal is a catch, a fault of the verifier is seen in the rows
        row["caught"], row["why"] = True, f"{type(error).__name__}: {str(error)[:200]}"
    row["seconds"] = round(time.perf_counter() - start, 3)
    if options.locate and row["shown_by"] and row["caught"]:
        row |= _located(subject, path, site, feed)
    return row


def _located(subject: Subject, path: str, site: Site, feed: int) -> Row:
    """The nodes that ``locate`` names, and whether one of them makes or reads a value of the site."""
    import onnx

    from fx2onnx.verify import locate

    start = time.perf_counter()
    try:
        kwargs = {name: torch.from_numpy(value) for name, value in subject.feeds[feed].items()}
        first = locate(path, subject.module, (), kwargs)
    except Exception as error:  # a fault of locate is seen in the rows
        return {"named": [], "hit": False, "stage": "", "locate_why": f"{type(error).__name__}: {str(error)[:200]}"}
    named = [] if first is None else list(first.nodes)
    values = {
        value for node in onnx.load(path).graph.node if node.name in named for value in [*node.input, *node.output]
    }
    seconds = round(time.perf_counter() - start, 3)
    return {
        "named": named,
        "hit": bool(values & set(site.values)),
        "stage": "" if first is None else first.stage,
        "locate_s": seconds,
    }


def run(options: argparse.Namespace) -> list[Row]:
    wanted = options.models.split(",") if options.models else [each.name for each in ARCHITECTURES]
    harms = options.harms.split(",") if options.harms else list(HARMS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            if architecture.name not in wanted:
                continue
            subject = Subject(architecture, folder)
            from fx2onnx import verify

            sound = verify(subject.result, subject.module, (), subject.kwargs)
            print(f"{subject.name}: {len(subject.feeds)} feeds, sound file ok: {sound.ok}", flush=True)
            for name, seed, site, harmed in mutants(subject, harms, options.seeds):
                row = examine(subject, folder, name, seed, site, harmed, options)
                rows.append(row)
                if options.rows:
                    with open(options.rows, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                if row["shown_by"] and not row["caught"]:
                    print(f"  ESCAPED {name} seed {seed}: {site.text} (shown by {row['shown_by']})", flush=True)
                elif "hit" in row and not row["hit"]:
                    print(
                        f"  NOT NAMED {name} seed {seed}: {site.text}: {row['named'][:4]} {row['stage']} {row.get('locate_why', '')}",
                        flush=True,
                    )
                elif row["caught"] and not row["shown_by"]:
                    print(
                        f"  unseen by the feeds, caught: {name} seed {seed}: {site.text}: {row.get('why', '')[:150]}",
                        flush=True,
                    )
    return rows


def summary(rows: list[Row]) -> str:
    harmful = [row for row in rows if row["shown_by"]]
    caught = [row for row in harmful if row["caught"]]
    kinds = len({row["harm"] for row in harmful})
    text = f"{len(rows)} harmed files of {kinds} kinds, {len(harmful)} with another result, {_share(len(caught), len(harmful))} caught"
    asked = [row for row in harmful if "hit" in row]
    hits = sum(row["hit"] for row in asked)
    return text + (f"; of those the node or its reader is named in {_share(hits, len(asked))}" if asked else "")


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / max(whole, 1):.1f} %)"


def page(rows: list[Row]) -> str:
    """Markdown: a row for each kind of harm, and what escaped."""
    lines = ["# Harmed files", "", str(__doc__).split("\n\n", 1)[1].strip(), "", f"{summary(rows)}.", ""]
    lines += ["| harm | files | another result | caught | node named |", "|---|---:|---:|---:|---:|"]
    for harm in dict.fromkeys(row["harm"] for row in rows):
        of_kind = [row for row in rows if row["harm"] == harm]
        harmful = [row for row in of_kind if row["shown_by"]]
        asked = [row for row in harmful if "hit" in row]
        named = f"{sum(row['hit'] for row in asked)} of {len(asked)}" if asked else ""
        lines.append(
            f"| {harm.replace('_', ' ')} | {len(of_kind)} | {len(harmful)} | {sum(row['caught'] for row in harmful)} | {named} |"
        )
    return "\n".join([*lines, *_escaped(rows)]) + "\n"


def _escaped(rows: list[Row]) -> list[str]:
    found = [row for row in rows if row["shown_by"] and not row["caught"]]
    texts = [
        f"- {row['model']}, {row['harm'].replace('_', ' ')}: {row['site']} (shown by {row['shown_by']})"
        for row in found
    ]
    return ["", "Not caught:", "", *texts] if found else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="", help="names, with commas; default: all")
    parser.add_argument("--harms", default="", help="kinds, with commas; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="files of each model and kind")
    parser.add_argument("--locate", action="store_true", help="ask for the wrong node, too")
    parser.add_argument("--rows", help="a file of JSON lines to add to")
    parser.add_argument("--write", type=Path, help="the page")
    parser.add_argument("--page-only", action="store_true", help="run nothing: the page of --rows")
    parser.add_argument(
        "--later", action="store_true", help="write a section at the end of the page, and leave the rest"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = read_rows(Path(options.rows), ("model", "harm", "seed")) if options.page_only else run(options)
    print(summary(rows))
    if options.write and options.later:
        write_later(options.write, rows, "\n".join([f"{summary(rows)}.", *_escaped(rows)]))
    elif options.write:
        options.write.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
