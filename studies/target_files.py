"""``python -m studies.target_files``: what ``lint`` says of 100 exports for a runtime, and what the runtime itself does with them,
into docs/measured/target_files.md.

Models of the zoo, static and with their dynamic sizes, and modules of one function, at opsets 13, 17 and 20, exported for no runtime in
particular. A finding about a file that runs, with the numbers of fx2onnx's runner, is false; a file without findings that does not
run is missed.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import fx2onnx
from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.runner import InferenceSession
from fx2onnx.sources import resolve
from fx2onnx.sources.registry import names as names_of
from fx2onnx.targets.form import find
from fx2onnx.targets.lint import lint
from tools.target_kernels import installed
from tools.target_nodes import Case
from tools.target_probes import PACKAGES, WEB, by_node, tried

PAGE = Path(__file__).parents[1] / "docs" / "measured" / "target_files.md"
RUNTIMES = (WEB, "openvino", "tract", "rten")
OPSETS = (13, 17, 20)
MOST = 100

Function = Callable[..., Any]
IMAGE, ROWS = (2, 3, 12, 12), (4, 6)
FUNCTIONS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "pad": (lambda x: F.pad(x, (1, 2)), (IMAGE,)),
    "pad with a value": (lambda x: F.pad(x, (1, 2), value=2.5), (IMAGE,)),
    "pad reflect": (lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), (IMAGE,)),
    "pad replicate": (lambda x: F.pad(x, (1, 2, 1, 1), mode="replicate"), (IMAGE,)),
    "pad circular": (lambda x: F.pad(x, (1, 2, 1, 1), mode="circular"), (IMAGE,)),
    "equal": (lambda x, y: x == y, (ROWS, ROWS)),
    "not equal": (lambda x, y: x != y, (ROWS, ROWS)),
    "logsumexp": (lambda x: x.logsumexp(-1), (ROWS,)),
    "atan2": (torch.atan2, (ROWS, ROWS)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (ROWS, ROWS)),
    "nonzero": (torch.nonzero, (ROWS,)),
    "tril": (torch.tril, (ROWS,)),
    "stft": (lambda x: torch.view_as_real(torch.stft(x, 16, return_complex=True)), ((2, 64),)),
    "mean": (lambda x: x.mean((-1, -2)), (IMAGE,)),
    "std": (lambda x: x.std(-1), (ROWS,)),
    "topk": (lambda x: x.topk(3), (ROWS,)),
    "sort": (torch.sort, (ROWS,)),
    "cumsum": (lambda x: x.cumsum(-1), (ROWS,)),
    "argmax": (lambda x: x.argmax(-1), (ROWS,)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (ROWS, ROWS)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 1], [2, 3], [1, 1], [5, 0]])), (ROWS,)),
    "index_put": (lambda x: x.index_put((torch.tensor([0, 2]),), torch.zeros(6)), (ROWS,)),
    "scatter_add": (lambda x: x.scatter_add(1, torch.zeros(4, 6, dtype=torch.int64), x), (ROWS,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (IMAGE, (2, 5, 5, 2))),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, size=(7, 9)), (IMAGE,)),
    "antialias": (lambda x: F.interpolate(x, size=(5, 5), mode="bilinear", antialias=True), (IMAGE,)),
    "det": (torch.det, ((2, 3, 3),)),
    "norms": (lambda x: F.group_norm(F.instance_norm(x), 3), (IMAGE,)),
    "pools": (lambda x: F.max_pool2d(F.avg_pool2d(x, 3, 1, 1), 2), (IMAGE,)),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 5), (IMAGE,)),
    "gelu": (F.gelu, (ROWS,)),
    "mish": (F.mish, (ROWS,)),
    "celu": (F.celu, (ROWS,)),
    "attention": (F.scaled_dot_product_attention, ((2, 2, 5, 4),) * 3),
    "one hot": (lambda x: F.one_hot(x.argmax(-1), 6), (ROWS,)),
    "rounding": (lambda x: x.round() + x.floor() + x.ceil() + x.trunc() + x.sign(), (ROWS,)),
    "trigonometry": (lambda x: x.sin() + x.atan() + x.sinh() + x.cosh().acosh(), (ROWS,)),
    "erf": (torch.erf, (ROWS,)),
    "mod": (lambda x, y: x % (y.abs() + 1), (ROWS, ROWS)),
    "integers": (lambda x: (x.long() // 2) & 3, (ROWS,)),
    "cross": (lambda x, y: torch.cross(x, y, dim=-1), ((4, 3), (4, 3))),
    "roll and flip": (lambda x: x.roll(1, -1).flip(0), (ROWS,)),
    "unfold": (lambda x: F.unfold(x, 3), (IMAGE,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), ((2, 4, 3, 3),)),
}
"""A module each, and the shapes of its inputs."""


class Module(torch.nn.Module):
    """Calls a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """The result of the function."""
        return self.function(*args)


def exports() -> Iterator[tuple[str, torch.nn.Module, Any, dict[str, Any]]]:
    """A name, a module, its inputs and the keywords of an export."""
    torch.manual_seed(0)
    for place, (name, (function, shapes)) in enumerate(FUNCTIONS.items()):
        module, args = Module(function), tuple(map(torch.randn, shapes))
        yield name, module, args, {"opset_version": OPSETS[place % len(OPSETS)]}
        if place % 3 == 0:
            yield name, module, args, {"opset_version": 20, "dynamic_shapes": ({0: "n"},) * len(args)}
    for place, name in enumerate(names_of("zoo")):
        source = resolve(f"zoo:{name}")
        for dynamic in (None, source.dynamic_shapes):
            opset = OPSETS[(place + bool(dynamic)) % len(OPSETS)]
            keywords = {"kwargs": source.kwargs, "dynamic_shapes": dynamic, "opset_version": opset}
            yield f"zoo:{name}", source.module, source.args, keywords


def files() -> Iterator[Case]:
    """The exports as cases, with what the runner says that they give."""
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, module, args, keywords in exports():
            path = Path(folder) / f"{count}.onnx"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fx2onnx.export(module.eval(), args, path, target="onnx", external_data=False, **keywords)
            except Fx2OnnxError as error:
                print(name, error)
                continue
            session = InferenceSession(path)
            tensors = [leaf for leaf in tree_leaves((args, keywords.get("kwargs"))) if isinstance(leaf, torch.Tensor)]
            names = [value.name for value in session.get_inputs()]
            inputs = {each: tensor.numpy() for each, tensor in zip(names, tensors, strict=True)}
            outputs = session.run(None, inputs)
            kind = f"{name}, opset {keywords['opset_version']}{', dynamic' if keywords.get('dynamic_shapes') else ''}"
            yield Case(kind, "", 0, keywords["opset_version"], {}, path.read_bytes(), inputs, outputs)
            count += 1
            if count == MOST:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/runtimes"), help="where the runtimes are installed")
    parser.add_argument("--only", choices=RUNTIMES)
    given = parser.parse_args()
    every = list(files())
    print(len(every), "files")
    rows, wrong = [], defaultdict(list)
    for runtime in (given.only,) if given.only else RUNTIMES:
        place = given.folder.resolve()
        if runtime == WEB:
            said = by_node(every, place / WEB)
        else:
            said = tried(runtime, every, [installed(*package, place) for package in PACKAGES[runtime][2]])
        counts: Counter[str] = Counter()
        for case, problem in zip(every, said, strict=True):
            findings = lint(onnx.load_from_string(case.model), find(runtime))
            kind = ("found" if findings else "missed") if problem else ("false" if findings else "runs")
            counts[kind] += 1
            if kind in ("false", "missed"):
                what = "; ".join(sorted({each.problem for each in findings})) or problem
                wrong[runtime].append(f"- {kind}: {case.name}: {' '.join(what.split())[:300]}")
                print(runtime, *wrong[runtime][-1:])
        rows.append(
            f"| {runtime} | {len(every)} | {counts['runs']} | {counts['found']} | {counts['false']} | {counts['missed']} |"
        )
        print(rows[-1])
    if not given.only:
        PAGE.write_text(_page(rows, wrong), encoding="utf-8")


def _page(rows: list[str], wrong: dict[str, list[str]]) -> str:
    lines = [
        "# Lint beside the runtimes", "",
        f"`python -m studies.target_files`, {date.today().isoformat()}: {MOST} exports for no runtime in particular (models of the zoo, static and",
        "with dynamic sizes, and modules of one function; opsets 13, 17 and 20), what `fx2onnx lint --target` says of each, and what the",
        "runtime itself does with it. rten is asked whether its converter takes the file; the others run it, and their numbers are compared",
        "with those of fx2onnx's runner (onnxruntime-web's are not).", "",
        "| runtime | files | run, no finding | fail, with a finding | finding, but runs | fails, no finding |",
        "|---|---|---|---|---|---|", *rows, "",
    ]  # fmt: skip
    for runtime, texts in wrong.items():
        lines += [f"## {runtime}", "", *texts, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
