"""``fx2onnx train FOLDER --data digits --steps 200``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import write_report
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.files.staging import replacing
from fx2onnx.report.document import training_drawing, training_page

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fx2onnx.manifest.training import TrainingManifest
    from fx2onnx.runner.trainer import Trainer

    Arrays = dict[str, npt.NDArray[np.generic]]
    from fx2onnx.report.document import TrainingCurves


TEST_EVERY = 5
"""Every fifth row is kept for the test."""
ROWS = 64
BARS = 40
PLOTS = ("training.html", "training.svg")
"""The names of the plots beside the trained model."""


@reports_errors
def train_command(
    folder: Annotated[Path, options.argument("FOLDER", "A folder that fx2onnx export-training wrote.")],
    data: Annotated[str, options.DATA],
    steps: Annotated[int, options.flag("--steps", "Steps of the optimizer.", min=1)] = 200,
    batch_size: Annotated[
        int | None, options.flag("--batch-size", "Rows of a step. Default: 64, or what the graph takes.", min=1)
    ] = None,
    engine: options.OneEngine = None,
    seed: options.Seed = 0,
    resume: Annotated[
        Path | None,
        options.flag("--resume", "Go on from this file, and write it at the end.", metavar="FILE"),
    ] = None,
    output: Annotated[Path | None, options.output("The folder to write the trained model.onnx to.", "FOLDER")] = None,
    report: options.Report = None,
    plot: Annotated[
        list[Path] | None,
        options.flag("--plot", "Draw loss and metrics: a .html page or a .svg drawing.", metavar="FILE"),
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train an exported folder without PyTorch."""
    from fx2onnx.judge.engines import SESSIONS, chosen_engines, open_session
    from fx2onnx.report.document import TrainingCurves
    from fx2onnx.runner.trainer import Trainer

    check_plots(plot or ())
    trainer = Trainer(
        folder, partial(open_session, chosen_engines(None if engine is None else [engine], SESSIONS)[0]), seed=seed
    )
    if resume is not None and resume.exists():
        trainer.load(resume)
    rows, held_out = _apart(_data(data, trainer.manifest))
    first, size = trainer.steps, _rows_of_step(trainer, batch_size, rows)
    before = _evaluated(trainer, held_out)
    curves = _trained(trainer, _batches(rows, size, steps, seed), steps, is_quiet=quiet or json_output)
    losses = curves[trainer.manifest.loss]
    test = _evaluated(trainer, held_out)
    if resume is not None:
        trainer.save(resume)
    model = None if output is None else str(trainer.save_model(output))
    tests = [(first, before), (trainer.steps, test)] if test else []
    drawn = TrainingCurves(folder.name, curves, tests, first)
    plots = write_plots(drawn, [*(plot or ()), *(output / name for name in PLOTS if output is not None)])
    summary = {
        "ok": True, "folder": str(folder), "steps": trainer.steps, "losses": losses, "test": test, "model": model,
        "plots": plots,
    }  # fmt: skip
    if report is not None:
        write_report(report, summary)
    if json_output:
        print_json(summary)
    elif not quiet:
        _show(losses, test)


def _data(name: str, manifest: TrainingManifest) -> Arrays:
    """An array for each input and target, all of as many rows. Raises UserError E001, E302, E602."""
    import numpy as np

    wanted = [*manifest.batch, *manifest.targets]
    if name == "digits":
        if len(manifest.batch) != 1 or len(manifest.targets) != 1:
            raise UserError("E001", "--data digits is for one input and one target", next="give a .npz file")
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ImportError as cause:
            raise UserError("E602", "--data digits needs scikit-learn", next="pip install scikit-learn") from cause
        pixels, labels = load_digits(return_X_y=True)
        images = pixels.astype(np.float32).reshape(-1, 1, 8, 8) / np.float32(16)
        return {manifest.batch[0]: images, manifest.targets[0]: labels.astype(np.int64)}
    try:
        with np.load(name, allow_pickle=False) as content:
            found: Arrays = {key: content[key] for key in content.files}
    except (OSError, ValueError) as cause:
        raise UserError(
            "E302", f"cannot read '{name}'", why=str(cause), next="--data digits, or a .npz file"
        ) from cause
    if set(found) != set(wanted):
        step = f"np.savez({name!r}, {', '.join(f'{key}=...' for key in wanted)})"
        why = f"the folder takes {', '.join(wanted)}"
        raise UserError("E001", f"'{name}' has the arrays {', '.join(found)}", why=why, next=step)
    if len({len(array) for array in found.values()}) != 1:
        why = ", ".join(f"{key} has {len(array)}" for key, array in found.items())
        step = "give each array one row for each example"
        raise UserError("E001", f"the arrays of '{name}' differ in their number of rows", why=why, next=step)
    return found


def _apart(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Rows to train on, and every fifth one for the test."""
    import numpy as np

    count = len(next(iter(arrays.values())))
    is_test = np.arange(count) % TEST_EVERY == 0
    if count < TEST_EVERY:
        return arrays, {}
    return {k: v[~is_test] for k, v in arrays.items()}, {k: v[is_test] for k, v in arrays.items()}


def _rows_of_step(trainer: Trainer, asked: int | None, rows: Arrays) -> int:
    """Raises UserError E001 where the graph's own number is another, or more than there are."""
    fixed, count = trainer.rows(), len(next(iter(rows.values())))
    if fixed is None:
        return asked or ROWS
    if asked not in (None, fixed) or fixed > count:
        raise UserError(
            "E001",
            f"a step of this folder takes {fixed} rows",
            why=f"--batch-size asks for {asked}" if asked not in (None, fixed) else f"the data has {count} to train on",
            next=(
                f"leave --batch-size out, and give {fixed} rows or more",
                f"or export with a dynamic batch: --dynamic '{';'.join(f'{name}:0=batch' for name in rows)}'",
            ),
        )
    return fixed


def _evaluated(trainer: Trainer, rows: Arrays) -> dict[str, float]:
    """Loss and metrics of the rows: of as many whole batches as they make, where the graph takes a fixed number. Nothing where
    there are fewer.
    """
    if not rows:
        return {}
    count, fixed = len(next(iter(rows.values()))), trainer.rows("eval")
    size = fixed or count
    parts = [{k: v[at : at + size] for k, v in rows.items()} for at in range(0, count - size + 1, size)]
    found = [_numbers(trainer.evaluate(part), trainer.manifest) for part in parts]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]} if found else {}


def _batches(rows: Arrays, size: int, steps: int, seed: int) -> Iterator[Arrays]:
    """``steps`` batches of ``size`` rows, in a new order in each round."""
    import numpy as np

    generator, count = np.random.default_rng(seed), len(next(iter(rows.values())))
    size = min(size, count)
    order = generator.permutation(count)
    for _ in range(steps):
        if len(order) < size:
            order = generator.permutation(count)
        chosen, order = order[:size], order[size:]
        yield {name: array[chosen] for name, array in rows.items()}


def _trained(trainer: Trainer, batches: Iterator[Arrays], steps: int, *, is_quiet: bool) -> dict[str, list[float]]:
    """The loss and the metrics of each step."""
    from rich.progress import Progress

    from fx2onnx.cli.progress import console

    curves: dict[str, list[float]] = {}
    loss = trainer.manifest.loss
    with Progress(console=console(stderr=True), disable=is_quiet) as progress:
        task = progress.add_task("training", total=steps)
        for batch in batches:
            for name, number in _numbers(trainer.step(batch), trainer.manifest).items():
                curves.setdefault(name, []).append(number)
            progress.update(task, advance=1, description=f"loss {curves[loss][-1]:.4f}")
    return curves


def _numbers(results: Mapping[str, Any], manifest: TrainingManifest) -> dict[str, float]:
    return {name: float(results[name]) for name in (manifest.loss, *manifest.metrics)}


def _show(losses: list[float], test: Mapping[str, float]) -> None:
    from fx2onnx.cli.progress import console

    out = console()
    out.print(f"loss      {losses[0]:.4f} -> {losses[-1]:.4f}   {_curve(losses)}")
    for name, number in test.items():
        out.print(f"test {name:<9} {number:.4f}")


def _curve(losses: list[float]) -> str:
    """The losses as one line of bars, each the mean of as many steps."""
    size = -(-len(losses) // BARS)
    means = [sum(part) / len(part) for part in (losses[i : i + size] for i in range(0, len(losses), size))]
    low, high = min(means), max(means)
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (mean - low) / (high - low))] if high > low else "▁" for mean in means)


WRITERS: dict[str, Callable[[TrainingCurves], str]] = {".html": training_page, ".svg": training_drawing}


def check_plots(paths: Sequence[Path]) -> None:
    """Raises UserError E001 for a file that cannot be drawn, before anything is trained."""
    for path in paths:
        if path.suffix not in WRITERS:
            raise UserError("E001", f"--plot {path} has no known ending", next=f"one of {', '.join(WRITERS)}")


def write_plots(curves: TrainingCurves, paths: Sequence[Path]) -> list[str]:
    """Write each file whole or not at all; returns their names. Raises UserError E301."""
    for path in paths:
        with replacing(path) as stage:
            stage.write_text(WRITERS[path.suffix](curves), encoding="utf-8")
    return [str(path) for path in paths]
