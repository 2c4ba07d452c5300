"""What other threads compute, print, draw and set while one captures is as if none did."""

from __future__ import annotations

import functools
import logging
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx

X = torch.randn(3, 4)


@pytest.fixture(autouse=True)
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Meeting(Net):
    """Its forward waits while another thread does something."""

    def __init__(self, during: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.during, self.before = during, before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before()
        thread = threading.Thread(target=lambda: _RESULTS.put(self.during()))
        thread.start()
        thread.join(30)
        return super().forward(x)


_RESULTS: queue.SimpleQueue[Any] = queue.SimpleQueue()
"""No list, which an export would leave as it was."""


def during_capture(during: Callable[[], Any], before: Callable[[], Any] = lambda: None, strategy: str = "fake") -> Any:
    """What ``during`` gives in another thread, while this one is in a forward that is captured and has done ``before``."""
    with torch.random.fork_rng():
        module = Meeting(functools.cache(during), before)
    finished = threading.Event()
    stay = threading.Thread(target=lambda: finished.wait(60))
    stay.start()  # captures know from the beginning that they are not alone
    try:
        fx2onnx.export(module, (X,), None, capture=strategy)
    finally:
        finished.set()
        stay.join()
    found = _RESULTS.get(timeout=30)
    while not _RESULTS.empty():  # an export that draws numbers runs forward again
        _RESULTS.get()
    return found


def encoder() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    padding = torch.zeros(4, 12, dtype=torch.bool)
    padding[1, 7:] = padding[3, 4:] = True
    return nn.TransformerEncoder(layer, 2).eval(), (torch.randn(4, 12, 32), padding)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fake", "symbolic"])
def test_a_padded_encoder_keeps_its_fast_path(strategy: str) -> None:
    module, (x, padding) = encoder()

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return module(x, src_key_padding_mask=padding)

    want = run()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert not torch.equal(run(), want), "the fast path shows in the numbers"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    different, runs, over = [], 0, threading.Event()

    def serve() -> None:
        nonlocal runs
        while not over.is_set():
            different.append(not torch.equal(run(), want))
            runs += 1

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        net = Net()
        for _ in range(25):
            fx2onnx.export(net, (X,), None, capture=strategy)
    finally:
        over.set()
        thread.join()
    assert runs > 3
    assert not any(different)
    assert torch.equal(during_capture(run, strategy="fake"), want)


def _content(model: Any) -> tuple[Any, ...]:
    nodes = [(node.op_type, list(node.input), list(node.output)) for node in model.graph.node]
    return nodes, [(weight.name, weight.raw_data) for weight in model.graph.initializer]


@pytest.mark.long
def test_four_threads_export_at_once() -> None:
    strategies = ["symbolic", "fake", "symbolic", "auto"]
    nets = [Net() for _ in strategies]
    want = [fx2onnx.export(net, (X,), None).model_proto for net in nets]
    found: dict[int, list[Any]] = {index: [] for index in range(len(strategies))}

    def work(index: int) -> None:
        for _ in range(8):
            try:
                made = fx2onnx.export(nets[index], (X,), None, capture=strategies[index]).model_proto
                found[index].append(_content(made) == _content(want[index]))
            except BaseException as error:
                found[index].append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: [True] * 8 for index in found}


@functools.lru_cache(maxsize=4)
def grid_of(size: int) -> torch.Tensor:
    return torch.arange(size) * 2.0


class Asking(nn.Module):
    """Python that capture answers in its own way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert type(x) is torch.Tensor
        scale = torch.tensor([min(len(x), 2), max(x.shape[1], 9)]).sum()
        return x * scale + grid_of(4) + torch.linspace(0, 1, x.shape[1])


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with torch.inference_mode():
            result = module.eval()(*args, **kwargs)
        return result if isinstance(result, torch.Tensor) else result[0]

    return run


def _paste() -> torch.Tensor:

    from torchvision.models.detection.roi_heads import paste_masks_in_image

    boxes = torch.tensor([[1.0, 2.0, 20.0, 22.0], [4.0, 4.0, 9.0, 12.0]])
    return paste_masks_in_image(torch.ones(2, 1, 5, 5), boxes, (30, 30))


def _bert() -> torch.Tensor:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    return _eager(BertModel(config), torch.ones(2, 3, dtype=torch.long), attention_mask=mask)()


def _lstm() -> torch.Tensor:
    torch.manual_seed(0)
    return _eager(nn.LSTM(4, 5), X[None])()


def _data() -> torch.Tensor:
    x = torch.zeros(2)
    x.data = torch.ones(3)
    return x


EAGER = {
    "answers": _eager(Asking(), X), "stand-in of torchvision": _paste, "masks of transformers": _bert, "lstm": _lstm,
    ".data": _data, "parametrized": _eager(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), X),
    "cond": lambda: torch.cond(X.sum() > 100, lambda x: x + 1, lambda x: x - 1, (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_eager_modules_during_a_capture(name: str) -> None:
    run = EAGER[name]
    want = run()
    grid_of.cache_clear()
    found = during_capture(run, before=lambda: grid_of(4))
    assert type(found) is torch.Tensor
    assert torch.equal(found, want)
    assert type(grid_of(4)) is torch.Tensor


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fake", "symbolic"])
def test_eager_modules_all_the_time(strategy: str) -> None:
    over, wrong, net = threading.Event(), list[str](), Net()
    want = {name: run() for name, run in EAGER.items()}

    def serve() -> None:
        while not over.is_set():
            for name, run in EAGER.items():
                try:
                    if not torch.equal(run(), want[name]):
                        wrong.append(name)
                except BaseException as error:
                    wrong.append(f"{name}: {error!r}")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            fx2onnx.export(net, (X,), None, capture=strategy)
    finally:
        over.set()
        thread.join()
    assert not wrong


@pytest.mark.long
def test_the_module_itself_during_its_capture() -> None:
    """It finds its attributes all the time; what one thread puts into the module stays another matter."""
    net, over, wrong = Net().eval(), threading.Event(), list[BaseException]()
    want = net(X)

    def serve() -> None:
        while not over.is_set():
            try:
                assert torch.equal(net(X), want)
            except BaseException as error:
                wrong.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(30):
        fx2onnx.export(net, (X,), None)
    over.set()
    thread.join()
    assert not wrong


def test_what_is_told_about_tracing_and_compiling() -> None:
    def told() -> tuple[Any, ...]:
        return (
            torch.fx._symbolic_trace.is_fx_symbolic_tracing(),
            torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
            torch.compile(len) is len,
            torch._ops._len_torch_dispatch_stack_pre_dispatch(),
        )

    assert during_capture(told) == (False, False, False, 0)


def test_torch_export_in_another_thread() -> None:
    net = Net().eval()
    program = during_capture(lambda: torch.export.export(net, (X,)))
    assert torch.equal(program.module()(X), net(X))


def test_prints_and_logs_of_other_threads(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    def speak() -> None:
        print("said elsewhere")
        logging.getLogger("somewhere").error("logged elsewhere")

    def print_here() -> None:
        print("said here")

    during_capture(speak, print_here, strategy="export")
    assert "said elsewhere" in capsys.readouterr().out
    assert "logged elsewhere" in caplog.text


def _draw() -> list[float]:
    return [
        torch.rand(()).item(),
        random.random(),
        float(np.random.rand()),
        random.gauss(0, 1),
        float(np.random.normal()),
    ]


def _seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def _draw_here() -> None:
    _seed()
    torch.seed()
    random.shuffle([1, 2, 3])
    np.random.permutation(5)
    torch.set_rng_state(torch.get_rng_state())


@pytest.mark.parametrize("strategy", ["fake", "auto"])
def test_draws_of_other_threads_go_on(strategy: str) -> None:
    _seed()
    want = [_draw() for _ in range(3)]
    _seed()
    found = [_draw(), during_capture(_draw, before=_draw_here, strategy=strategy), _draw()]
    assert found == want


FLAGS = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "flash": (lambda: torch.backends.cuda.enable_flash_sdp(False), torch.backends.cuda.flash_sdp_enabled),
    "matmul": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
}


@pytest.fixture
def flags_as_before() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends.cuda, torch.backends.mkldnn):
        backend.matmul.fp32_precision = "none"  # as it was: "highest" makes it "ieee"
    torch.backends.cudnn.benchmark = False


@pytest.mark.usefixtures("flags_as_before")
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_another_thread_sets_stays(name: str) -> None:
    change, value = FLAGS[name]
    before = value()
    during_capture(change)
    assert value() != before


def test_a_block_of_another_thread_does_not_outlive_it() -> None:
    inside, out = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with torch.backends.cudnn.flags(enabled=False):
            inside.set()
            out.wait(20)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert inside.wait(20)
    during_capture(lambda: (out.set(), thread.join()))
    assert torch.backends.cudnn.enabled


def test_overloads_keep_their_hash() -> None:
    """torch keeps sets of overloads, whichever thread makes them first."""
    packets = [
        getattr(torch.ops.aten, name) for name in ("size", "numel", "_assert_scalar", "sym_constrain_range", "add")
    ]
    keys = [*packets, *(getattr(packet, name) for packet in packets for name in packet.overloads())]
    seen = during_capture(lambda: set(keys))
    assert all(key in seen for key in keys)
