"""One export: build the model, save, verify; and what it cost."""

from __future__ import annotations

import functools
import gc
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.events import active_as_now, record, recording
from fx2onnx.base.memory import MemoryReader
from fx2onnx.base.notices import logger, warn
from fx2onnx.base.packages import importing
from fx2onnx.base.stack_frames import frames_emptied, levels_of, limit_reached, make_room_to_recurse
from fx2onnx.base.targets import check_target, open_file
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.report import Measured
from fx2onnx.files.staging import write_text

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.judge.verdict import Verdict


@frames_emptied()
def run(
    module: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    f: str | os.PathLike[str] | BinaryIO | None,
    options: ExportOptions,
    *,
    warns: bool = True,
) -> ExportResult:
    """``fx2onnx.export`` with its options as one value. ``warns``: the report's warnings are given as Python's, before the file
    is written.
    """
    read = [file.path for file in options.weight_files]
    if options.attest:
        from fx2onnx.proof.attest import require_path

        require_path(f)
    target = output_of(f, options)
    report_path = report_path_of(options, target)
    profile_path = _profile_path(options.profile, read + ([target] if isinstance(target, str) else []))
    memory = MemoryReader() if options.profile else None

    try:
        with Changes(), Changes():
            _pause_collector()
            before_change(active_as_now())
            make_room_to_recurse(levels_of(module))
            with recording("export", detailed=bool(options.profile), memory=memory) as recorder:
                with record("import"):
                    build, completed = _builders()
                _keep_numpy_errors()
                positional, named, asked = completed(module, args, kwargs, options)
                asked = _in_own_mode(module, asked)
                result = build(module, positional, named, asked)
                if warns:
                    warn(result.report.warnings)
                if target is not None:
                    with record("save"):
                        result.save(target, external_data=options.external_data, durable=options.durable)
                verdict = _verify(result, module, positional, named, asked) if options.verify else None
                if options.attest:
                    from fx2onnx.exporting.attested import attest_module

                    attest_module(result, module, verdict)
    except RecursionError as error:
        raise _too_deep(module, error) from error
    result.report.seconds = recorder.close().seconds
    result.report.phases = recorder.phases()
    if options.profile:
        result.measured = Measured(type(module).__name__, recorder, memory, verdict)
        if profile_path is not None and result.profile is not None:
            result.profile.write(profile_path)
    _log(result)
    if report_path is not None:
        write_report(report_path, result)
    if options.verbose:
        print(result.report)
    return result


@functools.cache
def _builders() -> tuple[Callable[..., ExportResult], Callable[..., Any]]:
    """The functions that build a model and complete its arguments; importing them needs torch. Raises UserError E602."""
    with importing():
        from fx2onnx.exporting.build import build
        from fx2onnx.exporting.exported_program import completed
    return build, completed


def _log(result: ExportResult) -> None:
    """One line for the logger ``fx2onnx`` on what was exported, and one for each run of the module where that is asked for."""
    report = result.report
    for attempt in report.attempts:
        logger().debug("run of the module: %s", attempt)
    place = result.path or "nothing written"
    logger().info("exported in %.3f s: opset %d, %d nodes, %s", report.seconds, report.opset, report.nodes_onnx, place)


def _too_deep(module: Any, error: RecursionError) -> UserError:
    """Outside forward, whose recursion is an error with its line."""
    why, raising = limit_reached(error)
    levels = levels_of(module)
    inside = f"the module has {levels} levels of modules inside each other; " if levels > 100 else ""
    return UserError("E101", "the export calls deeper than Python's recursion limit", why=inside + why, next=raising)


def _in_own_mode(module: Any, options: ExportOptions) -> ExportOptions:
    """``training=None``, which asks for the module as it is, as a mode where all of its parts have the same."""
    if options.capture.training is not None:
        return options
    from fx2onnx.capture.driver import as_module

    modes = {bool(part.training) for part in as_module(module).modules()}
    mode = modes.pop() if len(modes) == 1 else None
    return replace(options, capture=replace(options.capture, training=mode))


def output_of(f: Any, options: ExportOptions) -> str | BinaryIO | None:
    """The absolute path, or the open file, if the model can be written there: forward may change the working directory. Raises
    UserError E301.
    """
    if f is None:
        return None
    read = [file.path for file in options.weight_files]
    file = open_file(f, has_own_data=options.external_data or bool(read))
    return file or os.path.abspath(check_target(f, inputs=read))


def _profile_path(profile: bool | str | os.PathLike[str], inputs: Sequence[str]) -> str | None:
    """The path of the profile, checked before anything is exported."""
    if isinstance(profile, bool):
        return None
    from fx2onnx.report.profile import writer

    writer(profile)
    return os.path.abspath(check_target(profile, inputs=inputs, what="the profile"))


def report_path_of(options: ExportOptions, target: str | BinaryIO | None) -> str | None:
    """The path of the report, checked before anything is exported. Raises UserError E301."""
    if isinstance(options.report, bool):
        return None
    read = [*(file.path for file in options.weight_files), *([target] if isinstance(target, str) else [])]
    return os.path.abspath(check_target(options.report, inputs=read, what="the report"))


def write_report(path: str, result: ExportResult) -> None:
    """The report as JSON. Raises UserError E301."""
    write_text(path, json.dumps(result.report.as_dict(), indent=2, default=str) + "\n")


def _pause_collector() -> None:
    """No cyclic garbage collection until ``Changes`` end: an export makes many objects that all live until its end, and a full
    collection over torch's and the model's objects takes longer than the graph work. Other threads' garbage waits, too.
    """
    if gc.isenabled():
        before_change(_resume_collector)
        gc.disable()


UNSEEN = 2_000_000
"""The number of objects of exports that may be left for a full collection to come; then there is one."""


@dataclass
class _Old:
    """Objects that became old without having been looked at, since the full collection of that number."""

    count: int = 0
    since: int = 0
    has_frozen: bool = False
    """True if the user froze objects, which stay frozen: they are counted one by one, so this is kept."""


_OLD = _Old()


def _resume_collector() -> None:
    """Collect again. What the export made is counted as old: the next allocation would have a collection look at all of it."""
    full = gc.get_stats()[2]["collections"]
    if full != _OLD.since:
        _OLD.count, _OLD.since, _OLD.has_frozen = 0, full, False
    _OLD.has_frozen = _OLD.has_frozen or gc.get_freeze_count() > 0
    if not gc.isenabled() and not _OLD.has_frozen:
        _OLD.count += gc.get_count()[0]
        if _OLD.count > UNSEEN:
            gc.collect()
        else:
            gc.freeze()
            gc.unfreeze()
    gc.enable()


def _keep_numpy_errors() -> None:
    """An interrupt between the two ends of an ``np.errstate`` would leave it on."""
    import numpy as np

    before_change(partial(np.seterr, **np.geterr()))


def _verify(
    result: ExportResult, module: Any, args: Any, kwargs: Mapping[str, Any] | None, options: ExportOptions
) -> Verdict:
    from fx2onnx.judge.verdict import LOOK
    from fx2onnx.verify.compare import verify
    from fx2onnx.verify.locating.locate import locate

    asked = options.capture
    with record("verify"):
        verdict = verify(
            result, module, args, kwargs,
            training=asked.training, input_names=asked.input_names, effort=options.effort,
        )  # fmt: skip
        result.report.verdict = verdict.summary()
        try:
            verdict.raise_if_failed()
        except VerificationError as error:
            if verdict.unverified:
                raise
            error.locate = lambda: locate(result, module, args, kwargs, training=asked.training, verdict=verdict)
            held = "error.first_wrong is the first wrong node, error.first_wrong.describe() says who is to blame"
            error.next = tuple(held if step == LOOK else step for step in error.next)
            error.args = (error.render(),)
            raise
    return verdict
