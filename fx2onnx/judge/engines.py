"""The engines that run a model: the bundled runner, and others where they are installed.

Nothing else in the package opens a model in onnxruntime. Its Python interface neither takes nor gives arrays of dtypes that
NumPy lacks (bfloat16, the 8-bit floats); its ``OrtValue`` takes their bits, and its memory can be read.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import importlib.util
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line, onnxruntime_errors
from fx2onnx.base.memory import free_bytes
from fx2onnx.judge.memory import LARGE_BYTES

Array: TypeAlias = npt.NDArray[Any]
Run: TypeAlias = Callable[[dict[str, Array]], list[Any]]
CPU_PROVIDER = "CPUExecutionProvider"
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


def open_session(engine: str, model: str | bytes, profile_prefix: str = "") -> Any:
    """An ``InferenceSession`` of the runner or of onnxruntime. With ``profile_prefix`` it writes a trace under such a name.

    Raises:   UserError E303 where the engine does not open the model.
    """
    if engine == "runner":
        from fx2onnx.runner import InferenceSession, SessionOptions

        ours = SessionOptions()
        ours.enable_profiling, ours.profile_file_prefix = bool(profile_prefix), profile_prefix
        return InferenceSession(model, ours)
    try:
        options = _options_of_onnxruntime()
        if profile_prefix:
            options.enable_profiling, options.profile_file_prefix = True, profile_prefix
        return _session_of_onnxruntime(model, options)
    except Exception as cause:  # onnxruntime's classes share no base but Exception
        name = "the model" if isinstance(model, bytes) else f"'{model}'"
        raise UserError("E303", f"onnxruntime cannot open {name}", why=first_line(cause)[:600]) from cause


def run_session(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """All outputs of a session that ``open_session`` opened. Raises: Fx2OnnxError of the runner, UserError E403 of onnxruntime."""
    if not type(session).__module__.startswith("onnxruntime"):
        return list(session.run(None, dict(feeds)))
    with onnxruntime_errors():
        return _run_in_onnxruntime(session, feeds)


def open_runner(model: str | bytes) -> Run:
    """The bundled runner on ``model`` (a path or bytes)."""
    from fx2onnx.runner import InferenceSession
    from fx2onnx.semantics.limits import time_limit

    session = InferenceSession(model)

    def run(feeds: dict[str, Array]) -> list[Any]:
        with time_limit(_SECONDS.get() or math.inf):
            return list(session.run(None, feeds))

    return run


def open_onnxruntime(
    model: str | bytes, folder: str = "", *, is_precise: bool = False, provider: str = CPU_PROVIDER
) -> Run:
    """onnxruntime, on the CPU unless another ``provider`` is named. Large weights stay as they lie in the file: a copy in another order pays after many runs, and
    makes of the weights of convolutions (the layouts of its highest level) one more. ``folder``: where the weights of bytes lie;
    ``is_precise``: with kernels for codes that do not overflow.

    Raises:   MemoryError where there is too little for onnxruntime itself; what it raises for the model.
    """
    if "onnxruntime" not in sys.modules and (free := free_bytes()) < _ONNXRUNTIME_BYTES:
        raise MemoryError(f"{free >> 20} MB are free, and loading it may take {_ONNXRUNTIME_BYTES >> 20} MB")
    options = _options_of_onnxruntime()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if is_precise:
        options.add_session_config_entry(*PRECISE_OPTION)
    left_out: list[str] = []
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if _is_large(model):
        import onnxruntime

        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        left_out = ["ConstantFolding"]
    return partial(_run_onnxruntime, _session_of_onnxruntime(model, options, left_out, provider))


def _options_of_onnxruntime() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is an exception; at 3 it is in the terminal as well
    return options


def _session_of_onnxruntime(
    model: str | bytes, options: Any, left_out: Sequence[str] = (), provider: str = CPU_PROVIDER
) -> Any:
    import onnxruntime

    providers = list(dict.fromkeys([provider, CPU_PROVIDER]))
    return onnxruntime.InferenceSession(model, options, providers=providers, disabled_optimizers=list(left_out))


def _run_onnxruntime(session: Any, feeds: dict[str, Array]) -> list[Any]:
    import onnxruntime

    seconds = _SECONDS.get()
    if seconds is None:
        return _run_in_onnxruntime(session, feeds)
    options = onnxruntime.RunOptions()
    timer = threading.Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return _run_in_onnxruntime(session, feeds, options)
    except Exception as cause:  # onnxruntime's classes are no part of its interface
        if options.terminate:
            raise TimeoutError("it still runs") from cause
        raise
    finally:
        timer.cancel()


def _is_large(model: str | bytes) -> bool:
    """Return whether the model and what lies beside it are larger than what is packed at once."""
    if isinstance(model, bytes):
        return len(model) > LARGE_BYTES
    folder, name = os.path.split(os.path.abspath(model))
    beside = [entry for entry in os.scandir(folder) if entry.name.startswith(name) and entry.is_file()]
    return sum(entry.stat().st_size for entry in beside) > LARGE_BYTES


def open_reference(model: str | bytes) -> Run:
    """The evaluator of the onnx package: slow, and written from ONNX's specification alone."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)

    def run(feeds: dict[str, Array]) -> list[Any]:
        with np.errstate(all="ignore"):  # NaN and infinities are results like others
            return list(evaluator.run(None, feeds))

    return run


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


class _Engines(dict[str, Callable[[str | bytes], Run]]):
    """The engines by name. ``onnxruntime:PROVIDER`` is none of the names, and opens a model in a provider of onnxruntime."""

    def __missing__(self, name: str) -> Callable[[str | bytes], Run]:
        engine, _, provider = name.partition(":")
        if engine != "onnxruntime" or not provider:
            raise KeyError(name)
        return partial(open_onnxruntime, provider=provider)


ENGINES = _Engines(runner=open_runner, onnxruntime=open_onnxruntime, reference=open_reference, openvino=open_openvino)
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""The package that an engine needs, if it does not come with fx2onnx."""
_QUICK = ("onnxruntime", "openvino", "runner", "reference")


def slowness(engine: str) -> int:
    """A number by which the quickest engine is the least: which one runs where not all can."""
    return _QUICK.index(engine.partition(":")[0])


SESSIONS = ("onnxruntime", "runner")
"""The engines with sessions (``open_session``); the first is taken where none is named."""
DEFAULT = ("runner", "onnxruntime")
"""The engines of a verification that names none: each further engine costs a run of the model for each sample."""


_UNREGISTERED = re.compile(r"Fatal error: (?P<domain>[\w.-]+):\w+\(-?\d+\) is not a registered function/op")
_DOMAINS_OF_RUNTIMES = ("ai.onnx", "com.microsoft")


def lacks_operator(cause: BaseException) -> bool:
    """Return whether an engine has no kernel for an operator, or knows nothing of a domain of the user's."""
    if isinstance(cause, Fx2OnnxError):
        return cause.code == "E402"
    if type(cause).__name__ in ("NotImplemented", "NotImplementedError"):  # onnxruntime's; that of onnx.reference
        return True
    unregistered = _UNREGISTERED.search(str(cause))
    return unregistered is not None and not unregistered["domain"].startswith(_DOMAINS_OF_RUNTIMES)


def is_available(name: str) -> bool:
    """Return whether the engine can be used here."""
    return name not in PACKAGES or importlib.util.find_spec(PACKAGES[name]) is not None


def chosen_engines(names: Sequence[str] | None, known: Sequence[str] | None = None) -> list[str]:
    """The engines to use: each of ``names`` once, or by default those that are available. ``known``: those that may be named.

    Raises:   UserError E001 for an unknown engine or none at all, E602 for one that is not installed.
    """
    if names is None:
        return [name for name in known or DEFAULT if is_available(name)]
    chosen = list(dict.fromkeys(map(_with_provider, [names] if isinstance(names, str) else names)))
    for name in chosen or [""]:
        if known is None and name.startswith("onnxruntime:"):
            continue
        if name not in (known or ENGINES):
            what = f"unknown engine {name!r}" if chosen else "no engine is named"
            raise UserError("E001", what, next=f"engines: {', '.join(known or ENGINES)}")
        if not is_available(name):
            raise UserError(
                "E602",
                f"the engine {name} is not installed",
                next=[f"pip install {PACKAGES[name]}", "or run it in the runner, which comes with fx2onnx"],
            )
    return chosen


def _with_provider(name: str) -> str:
    """``onnxruntime:cuda`` as ``onnxruntime:CUDAExecutionProvider``; other names as they are. Raises UserError E602."""
    engine, names_one, asked = name.partition(":")
    if engine != "onnxruntime" or not names_one:
        return name
    chosen_engines([engine])
    import onnxruntime

    found = onnxruntime.get_available_providers()
    for provider in found:
        if asked.lower() in (provider.lower(), provider.lower().removesuffix("executionprovider")):
            return f"{engine}:{provider}"
    raise UserError(
        "E602",
        f"the installed onnxruntime has no provider {asked!r}",
        why=f"it has {', '.join(found)}",
        next="install the package of onnxruntime that has it, such as onnxruntime-gpu or onnxruntime-openvino",
    )


_TEXTS = "tensor(string)"
# onnxruntime's name of the type -> the number of onnx.TensorProto.DataType, the dtype, one of its size that NumPy knows.
_FOREIGN: dict[str, tuple[int, Any, Any]] = {
    "tensor(bfloat16)": (16, ml_dtypes.bfloat16, np.int16),
    "tensor(float8e4m3fn)": (17, ml_dtypes.float8_e4m3fn, np.uint8),
    "tensor(float8e4m3fnuz)": (18, ml_dtypes.float8_e4m3fnuz, np.uint8),
    "tensor(float8e5m2)": (19, ml_dtypes.float8_e5m2, np.uint8),
    "tensor(float8e5m2fnuz)": (20, ml_dtypes.float8_e5m2fnuz, np.uint8),
}


def _run_in_onnxruntime(session: Any, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
    """All outputs of a session of onnxruntime, with arrays of any dtype in and out."""
    types = {value.name: value.type for value in session.get_inputs()}
    if not any(value.type in _FOREIGN for value in (*session.get_inputs(), *session.get_outputs())):
        return list(session.run(None, dict(feeds), run_options))
    values = {name: to_ort_value(feed, types.get(name, "")) for name, feed in feeds.items()}
    return [from_ort_value(value) for value in session.run_with_ort_values(None, values, run_options)]


def to_ort_value(array: Array, type_text: str) -> Any:
    """The array as an ``onnxruntime.OrtValue`` of the type ``tensor(...)``."""
    import onnxruntime

    if type_text == _TEXTS:
        return _value_of_texts(array)
    kept = np.ascontiguousarray(array).reshape(array.shape)
    if type_text not in _FOREIGN or kept.dtype != _FOREIGN[type_text][1]:
        return onnxruntime.OrtValue.ortvalue_from_numpy(kept)
    element, _, carrier = _FOREIGN[type_text]
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(kept.view(carrier), element)


def from_ort_value(value: Any) -> Array:
    """An ``onnxruntime.OrtValue`` in the memory of the CPU as an array of its own."""
    foreign = _FOREIGN.get(value.data_type())
    if foreign is None:
        array: Array = value.numpy()
        return array
    shape: Sequence[int] = value.shape()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, dtype=foreign[1]).reshape(shape).copy()


def _value_of_texts(array: Array) -> Any:
    """Texts as ``onnxruntime.OrtValue``, which its ``ortvalue_from_numpy`` refuses to make: the output of a file that holds them."""
    import onnx

    tensor = onnx.numpy_helper.from_array(np.asarray(array, dtype=object), "texts")
    node = onnx.helper.make_node("Constant", [], ["texts"], value=tensor)
    output = onnx.helper.make_tensor_value_info("texts", onnx.TensorProto.STRING, array.shape)
    graph = onnx.helper.make_graph([node], "texts", [], [output])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)])
    session = _session_of_onnxruntime(model.SerializeToString(), _options_of_onnxruntime())
    return session.run_with_ort_values(None, {})[0]
