"""The names and functions of Python and torch that are others while a module runs inside a capture: all of them, and why."""

from __future__ import annotations

import subprocess
import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx

SIZES = "torch's own takes plain numbers: this one takes symbolic sizes, too"
PYTHON = "Python computes with numbers that may be symbolic sizes"
METHODS = "an integer or a real number has it, and torch's symbolic one has not, or asks for the number"
ASKED = "Python asks a tensor for what no operator shows"
MADE = "a tensor that Python makes of symbolic sizes or of fake tensors"
LIBRARY = "a function of the library decides by data, or reads memory (model_patches)"
WRITTEN = "the operators that it stands for are recorded, as it is written, uncompiled"

PATCHED: tuple[tuple[str, str, str], ...] = (
    ("builtins", "max min pow", PYTHON),
    (
        "math",
        "comb cos degrees exp fabs fmod gcd hypot isfinite isinf isnan isqrt lcm log log10 log1p log2 pow radians sin sqrt tanh",
        PYTHON,
    ),
    ("the user's file", "len type", PYTHON),
    ("torch.SymBool", "__class__ real", METHODS),
    (
        "torch.SymFloat",
        "__class__ __divmod__ __floordiv__ __format__ __rdivmod__ __rfloordiv__ conjugate cos exp imag log log10 log2 real rint sin "
        "sqrt tanh",
        METHODS,
    ),
    (
        "torch.SymInt",
        "__class__ __divmod__ __floordiv__ __format__ __hash__ __invert__ __rdivmod__ __rfloordiv__ __round__ as_integer_ratio "
        "bit_count bit_length conjugate cos denominator exp imag log log10 log2 numerator real rint sin sqrt tanh to_bytes",
        METHODS,
    ),
    (
        "torch",
        "bartlett_window blackman_window chunk diagonal hamming_window hann_window istft kaiser_window linspace logspace rand "
        "randint randn randperm range tril_indices triu_indices vander",
        SIZES,
    ),
    ("torch", "as_tensor asarray from_numpy tensor", MADE),
    ("torch", "sym_ite", "it asks for the truth of a test by sizes"),
    ("torch.fft", "fftfreq rfftfreq", SIZES),
    ("torch._C._nn", "fractional_max_pool2d fractional_max_pool3d", SIZES),
    (
        "torch.nn.functional",
        "adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d "
        "fractional_max_pool2d fractional_max_pool3d max_pool1d max_pool2d max_pool3d one_hot scaled_dot_product_attention",
        SIZES,
    ),
    (
        "torch.fx.experimental.symbolic_shapes",
        "constrain_range guard_or_false guard_or_true guard_size_oblivious",
        "torch's Python asks of its own symbolic sizes, which ours are not",
    ),
    ("torch.fx.experimental.symbolic_shapes.has_free_unbacked_symbols", "__code__", "as above"),
    ("opt_einsum", "contract_path", "it chooses an order by sizes, as torch.einsum lets it: that at the sample"),
    ("opt_einsum.contract", "contract_path", "as above"),
    ("torch.Tensor", "chunk contiguous diagonal new_tensor unfold", SIZES),
    ("torch.Tensor", "__new__", MADE),
    (
        "torch.Tensor",
        "_base _is_view _version data_ptr grad_fn is_leaf is_quantized item nbytes numpy requires_grad tolist",
        ASKED,
    ),
    ("torch.Tensor", "data", "an assignment makes the tensor one over other memory, which no operator shows"),
    ("torch._tensor.Tensor.__deepcopy__", "__code__", ASKED),
    ("torch._tensor.Tensor.__dlpack__", "__code__", ASKED),
    ("torch._tensor.Tensor.__reduce_ex__", "__code__", ASKED),
    ("torch._tensor.Tensor.__repr__", "__code__", ASKED),
    ("torch.nn.parameter.Parameter.__new__", "__code__", MADE),
    ("torch.storage.UntypedStorage", "data_ptr device", ASKED),
    ("torch.storage.TypedStorage.__getitem__", "__code__", ASKED),
    ("torch.storage.UntypedStorage.__getitem__", "__code__", ASKED),
    ("torch._C", "_len_torch_dispatch_stack", "whoever counts the modes that are on sees none of ours"),
    ("torch.utils._python_dispatch._get_current_dispatch_mode", "__code__", "as above"),
    ("torch.ScriptMethod", "__call__", "TorchScript is run by Python, one operator at a time"),
    ("torch.jit.torch.jit.ScriptFunction", "__call__", "TorchScript is run by Python, one operator at a time"),
    ("torch._dynamo.eval_frame", "_stance", WRITTEN),
    ("torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__", "__code__", WRITTEN),
    ("torch.compile", "__code__", WRITTEN),
    (
        "torch.nn.attention.flex_attention._warn_once",
        "__code__",
        "it warns of attention that runs uncompiled: a capture is",
    ),
    ("torch._higher_order_ops.utils._hop_compile_and_call", "__code__", WRITTEN),
    (
        "torch.backends.mha.get_fastpath_enabled",
        "__code__",
        "torch's modules take no fused path, which is not for training",
    ),
    ("torch.autograd.graph._engine_run_backward", "__code__", "results recorded whole have no history"),
    ("torch.autograd.function.Function.apply", "__code__", "its forward is recorded"),
    ("torch.nn.modules.module.Module._wrapped_call_impl", "__code__", "which module runs is kept, at no frame more"),
    ("torch.nn.modules.batchnorm._BatchNorm.forward", "__code__", LIBRARY),
    ("torch.nn.utils.rnn.pad_packed_sequence", "__code__", LIBRARY),
    ("torch.nn.modules.rnn.LSTM.get_expected_cell_size", "__code__", LIBRARY),
    ("torch.nn.modules.rnn.RNNBase.get_expected_hidden_size", "__code__", LIBRARY),
    ("torch.ao.nn.quantized.dynamic.modules.rnn.GRU.forward_impl", "__code__", LIBRARY),
    ("torch.ao.nn.quantized.dynamic.modules.rnn.LSTM.forward_impl", "__code__", LIBRARY),
)
"""Where, which names, and why: all that differs while a module of torch alone runs with a dynamic size, in one thread."""
COUNTERS = {("torch._subclasses.meta_utils", "DESCRIBER_NEXT_ID")}
"""What torch itself counts up."""
IMPORTED = (
    "torch.nn.attention.flex_attention",
    "torch._dynamo",
    "torch._inductor",
    "opt_einsum",
    "torch.ao.nn.quantized.dynamic",
)
"""What has patched names and is imported only where a module needs it."""
OWN = ("fx2onnx", "tests", "_pytest", "pytest", "_hypothesis", "hypothesis")

Seen = dict[tuple[str, str], Any]


def snapshot() -> tuple[Seen, dict[int, tuple[str, types.FunctionType, types.CodeType]]]:
    """What modules and classes hold under each name, and the code of each of their functions."""
    names: Seen = {}
    functions: dict[int, tuple[str, types.FunctionType, types.CodeType]] = {}
    seen: set[int] = set()
    pending = [(name, module) for name, module in sys.modules.items() if name.split(".")[0] not in OWN]
    pending.append(("the user's file", sys.modules[__name__]))
    while pending:
        place, holder = pending.pop()
        if id(holder) in seen or not isinstance(holder, types.ModuleType | type):
            continue
        seen.add(id(holder))
        for name, value in [*vars(holder).items()]:
            names[place, name] = value
            function = getattr(value, "__func__", value) if isinstance(value, classmethod | staticmethod) else value
            if type(function) is types.FunctionType:
                functions[id(function)] = (
                    f"{function.__module__}.{function.__qualname__}",
                    function,
                    function.__code__,
                )
            elif isinstance(value, type) and str(value.__module__).split(".")[0] not in OWN:
                pending.append((f"{value.__module__}.{value.__qualname__}", value))
    return names, functions


def differences(before: Any, after: Any) -> set[tuple[str, str]]:
    names, functions = before[0].keys() | after[0].keys(), before[1].keys() & after[1].keys()
    found = {key for key in names if before[0].get(key) is not after[0].get(key)}
    found |= {(functions_of, "__code__") for functions_of, *_ in _changed(before[1], after[1], functions)}
    return {key for key in found if key not in COUNTERS and key != ("the user's file", "DURING")}


def _changed(before: Any, after: Any, both: Any) -> list[Any]:
    return [before[one] for one in both if before[one][2] is not after[one][2]]


DURING: Any = None


class Watching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global DURING
        DURING = snapshot()
        return self.inner(x)


def check() -> None:
    """In a process of its own: other tests import libraries and leave threads, and what is patched depends on both."""
    module, x = Watching(), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # the first imports what the second has
            before = snapshot()
            fx2onnx.export(module, (x,), dynamic_axes={"x": {0: "n"}})
        during, after = differences(before, DURING), differences(before, snapshot())
    assert after == set(), f"not as before: {sorted(after)}"
    table = {(place, name) for place, names, _ in PATCHED for name in names.split()}
    assert during - table == set(), f"patched, and not in the table: {sorted(during - table)}"
    there = before[0].keys() | {(name, "__code__") for name, *_ in before[1].values()}
    assert (table & there) - during == set(), f"in the table, and not patched: {sorted((table & there) - during)}"


@pytest.mark.long
def test_the_table_is_what_differs_while_a_module_runs_and_all_is_as_before_afterwards() -> None:
    imports = "".join(f"import {name}\n" for name in IMPORTED)
    code = f"{imports}import runpy\nrunpy.run_path({__file__!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    check()
