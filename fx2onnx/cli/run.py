"""``fx2onnx run MODEL``."""

from __future__ import annotations

import enum
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable, check_writable, replacing
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    import numpy as np

_FIRST_VALUES = 4


class Engine(enum.StrEnum):
    """What runs the model."""

    runner = "runner"
    onnxruntime = "onnxruntime"


@reports_errors
def run_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file to run.", show_default=False)],
    input: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="NAME=FILE.npy or NAME=random; random where not given.", show_default=False),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", help="Size of a dynamic dim, NAME=N; 1 where not given.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random inputs.")] = 0,
    save_outputs: Annotated[
        Path | None, typer.Option("--save-outputs", help="Write all outputs to this .npz file.", show_default=False)
    ] = None,
    engine: Annotated[Engine, typer.Option("--engine", help="What runs the model.")] = Engine.runner,
    json_output: options.Json = False,
) -> None:
    """Run an ONNX file and show its outputs."""
    check_readable(model)
    if save_outputs is not None:
        check_writable(save_outputs)
    from fx2onnx.cli.feeds import make_feeds, parse_dims, parse_pairs
    from fx2onnx.cli.progress import Stages

    given, dims = parse_pairs(input or [], "--input"), parse_dims(dim or [])
    with Stages(quiet=json_output) as stages:
        with stages.stage(f"load {model.name}"):
            session = _session(model, engine)
        feeds = make_feeds(session.get_inputs(), given, dims, seed)
        outputs = stages.call(f"run in {engine.value}", lambda: _run(session, feeds))
    names = [item.name for item in session.get_outputs()]
    if save_outputs is not None:
        import numpy as np

        with replacing(save_outputs) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **dict(zip(names, outputs, strict=True)))
    described = [_describe(name, value) for name, value in zip(names, outputs, strict=True)]
    if json_output:
        print_json({"file": str(model), "engine": engine.value, "inputs": _inputs(feeds), "outputs": described})
    else:
        _print_table(feeds, described)


def _session(model: Path, engine: Engine) -> Any:
    if engine is Engine.runner:
        from fx2onnx import runner

        return runner.InferenceSession(str(model))
    if importlib.util.find_spec("onnxruntime") is None:
        raise UserError(
            "E602", "--engine onnxruntime needs onnxruntime, which is not installed", next="pip install onnxruntime"
        )
    import onnxruntime

    try:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        return onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's classes share no base but Exception
        raise UserError("E302", f"onnxruntime cannot load '{model}'", why=str(error).splitlines()[0]) from error


def _run(session: Any, feeds: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    try:
        return list(session.run(None, feeds))
    except Fx2OnnxError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise UserError("E403", "onnxruntime failed while running the model", why=str(error).splitlines()[0]) from error


def _inputs(feeds: dict[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(value.shape), "dtype": str(value.dtype)} for name, value in feeds.items()]


def _describe(name: str, value: Any) -> dict[str, Any]:
    """Name, shape, dtype, least and greatest value and the first values; NaN counts as neither."""
    import numpy as np

    if not isinstance(value, np.ndarray):
        return {
            "name": name,
            "shape": None,
            "dtype": type(value).__name__,
            "min": None,
            "max": None,
            "first": [str(value)[:80]],
        }
    first = value.reshape(-1)[:_FIRST_VALUES]
    numeric = value.dtype.kind in "biuf" or value.dtype.name in ("bfloat16",)
    described: dict[str, Any] = {
        "name": name,
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "min": None,
        "max": None,
    }
    if numeric and value.size:
        wide = value.astype(np.float64) if value.dtype.kind not in "biu" else value
        usable = wide[~np.isnan(wide)] if wide.dtype.kind == "f" else wide
        if usable.size:
            described["min"], described["max"] = usable.min().item(), usable.max().item()
        if usable.size < wide.size:
            described["nan"] = int(wide.size - usable.size)
    described["first"] = [
        item.item() if value.dtype.kind in "biuf" else float(item) if numeric else str(item) for item in first
    ]
    return described


def _print_table(feeds: dict[str, np.ndarray[Any, Any]], described: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fx2onnx.cli.progress import console

    out = console()
    for name, value in feeds.items():
        out.print(Text(f"input  {name}  {list(value.shape)}  {value.dtype}", style="dim"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("output", "shape", "dtype"):
        table.add_column(heading, overflow="fold")
    for heading in ("min", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("first values")
    for item in described:
        shape = "" if item["shape"] is None else str(item["shape"])
        values = " ".join(_short(value) for value in item["first"])
        note = f"   ({item['nan']} NaN)" if "nan" in item else ""
        cells = [item["name"], shape, item["dtype"], _short(item["min"]), _short(item["max"]), values + note]
        table.add_row(*(Text(cell) for cell in cells))
    out.print(table)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
