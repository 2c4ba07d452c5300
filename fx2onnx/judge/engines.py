"""The engines that run a model: the bundled runner, and others where they are installed."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import UserError
from fx2onnx.base.memory import free_bytes
from fx2onnx.base.ort_values import run_session
from fx2onnx.irx.text_values import text_value
from fx2onnx.judge.memory import LARGE_BYTES

Array: TypeAlias = npt.NDArray[Any]
Run: TypeAlias = Callable[[dict[str, Array]], list[Any]]
PRECISE_OPTION = ("session.x64quantprecision", "1")
"""With which onnxruntime takes int8 kernels that do not overflow, on CPUs whose fast ones do."""
_SECONDS: contextvars.ContextVar[float | None] = contextvars.ContextVar("fx2onnx_engine_seconds", default=None)
_ONNXRUNTIME_BYTES = 96 << 20
"""Loading onnxruntime 1.32 takes 51 MB; where that is not there, its library ends the process instead of raising an error."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Runs in the block end after so many seconds with TimeoutError: the runner's in a loop, onnxruntime's anywhere."""
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


def open_runner(model: str | bytes) -> Run:
    """The bundled runner on ``model`` (a path or bytes)."""
    from fx2onnx.runner import InferenceSession
    from fx2onnx.runner.limits import time_limit

    session = InferenceSession(model)

    def run(feeds: dict[str, Array]) -> list[Any]:
        with time_limit(_SECONDS.get() or math.inf):
            return list(session.run(None, feeds))

    return run


def open_onnxruntime(model: str | bytes, folder: str = "", *, is_precise: bool = False) -> Run:
    """onnxruntime on the CPU. Large weights stay as they lie in the file: a copy in another order pays after many runs, and
    makes of the weights of convolutions (the layouts of its highest level) one more. ``folder``: where the weights of bytes lie;
    ``is_precise``: with kernels for codes that do not overflow.

    Raises:   MemoryError where there is too little for onnxruntime itself; what it raises for the model.
    """
    if "onnxruntime" not in sys.modules and (free := free_bytes()) < _ONNXRUNTIME_BYTES:
        raise MemoryError(f"{free >> 20} MB are free, and loading it may take {_ONNXRUNTIME_BYTES >> 20} MB")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is an exception; at 3 it is in the terminal as well
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if is_precise:
        options.add_session_config_entry(*PRECISE_OPTION)
    left_out: list[str] = []
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if _is_large(model):
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        left_out = ["ConstantFolding"]
    session = onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
    )
    return partial(_run_onnxruntime, session)


def _run_onnxruntime(session: Any, feeds: dict[str, Array]) -> list[Any]:
    import onnxruntime

    seconds = _SECONDS.get()
    if seconds is None:
        return run_session(session, feeds, text_value)
    options = onnxruntime.RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return run_session(session, feeds, text_value, options)
    except Exception as cause:  # onnxruntime's classes are no part of its interface
        if options.terminate:
            raise TimeoutError("it still runs") from cause
        raise
    finally:
        timer.cancel()


def _is_large(model: str | bytes) -> bool:
    """Whether the model and what lies beside it are larger than what is packed at once."""
    if isinstance(model, bytes):
        return len(model) > LARGE_BYTES
    folder, name = os.path.split(os.path.abspath(model))
    beside = [entry for entry in os.scandir(folder) if entry.name.startswith(name) and entry.is_file()]
    return sum(entry.stat().st_size for entry in beside) > LARGE_BYTES


def open_reference(model: str | bytes) -> Run:
    """The evaluator of the onnx package: slow, and written from ONNX's specification alone."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda feeds: list(evaluator.run(None, feeds))


def open_openvino(model: str | bytes) -> Run:
    """OpenVINO on the CPU, in the precision of the model: left to itself it may compute in bfloat16."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 2}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)

    def run(feeds: dict[str, Array]) -> list[Any]:
        results = compiled(feeds, share_inputs=False, share_outputs=False)
        return [np.array(results[index]) for index in range(len(compiled.outputs))]

    return run


ENGINES: dict[str, Callable[[str | bytes], Run]] = {
    "runner": open_runner,
    "onnxruntime": open_onnxruntime,
    "reference": open_reference,
    "openvino": open_openvino,
}
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""What has to be installed for an engine that does not come with fx2onnx."""
DEFAULT = ("runner", "onnxruntime")
"""Those of a verification that names none: each further engine costs a run of the model for each sample."""


_UNREGISTERED = re.compile(r"Fatal error: (?P<domain>[\w.-]+):\w+\(-?\d+\) is not a registered function/op")
_DOMAINS_OF_RUNTIMES = ("ai.onnx", "com.microsoft")


def lacks_operator(cause: BaseException) -> bool:
    """Whether an engine has no kernel for an operator, or knows nothing of a domain of the user's."""
    if type(cause).__name__ in ("NotImplemented", "NotImplementedError"):  # onnxruntime's; that of onnx.reference
        return True
    unregistered = _UNREGISTERED.search(str(cause))
    return unregistered is not None and not unregistered["domain"].startswith(_DOMAINS_OF_RUNTIMES)


def is_available(name: str) -> bool:
    """Whether the engine can be used here."""
    return name not in PACKAGES or importlib.util.find_spec(PACKAGES[name]) is not None


def available_engines() -> list[str]:
    """Names of the default engines that can be used here."""
    return [name for name in DEFAULT if is_available(name)]


def chosen_engines(names: Sequence[str] | None) -> list[str]:
    """The engines to use: each of ``names`` once, or by default those that are available.

    Raises:   UserError E001 for an unknown engine or none at all, E602 for one that is not installed.
    """
    if names is None:
        return available_engines()
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    for name in chosen or [""]:
        if name not in ENGINES:
            what = f"unknown engine {name!r}" if chosen else "no engine is named"
            raise UserError("E001", what, next=f"engines: {', '.join(ENGINES)}")
        if not is_available(name):
            raise UserError("E602", f"the engine {name} is not installed", next=f"pip install {PACKAGES[name]}")
    return chosen
