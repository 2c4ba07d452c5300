"""Modules that lie on another device than the CPU: here on one made in Python, in a process of its own for all tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices made in Python",
)

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
import traceback
from pathlib import Path
import torch
from tests.capture.fake_device import COMPUTED, DEVICE, READ
import fx2onnx
from fx2onnx.irx import data_file

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 96)
        self.last = torch.nn.Linear(96, 8)
        self.turned = torch.nn.Parameter(torch.randn(96, 48).t())
        self.register_buffer("mask", torch.ones(96, dtype=torch.bool))
        self.register_buffer("narrow", torch.ones(96, dtype=torch.bfloat16))

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = torch.where(self.mask, y * self.narrow.float(), torch.zeros(1, device=y.device))
        return self.last(y + self.turned[:1]) + torch.full((8,), 0.5, device=x.device)


def fresh():
    torch.manual_seed(0)
    READ.clear()
    return Net(), torch.randn(3, 64)

def same_file(move):
    net, x = fresh()
    fx2onnx.export(net, (x,), "here.onnx", dynamic_shapes=({0: "batch"},), metadata="none")
    net.to(DEVICE)
    fx2onnx.export(net, (move(x),), "there.onnx", dynamic_shapes=({0: "batch"},), metadata="none")
    assert {p.device for p in net.parameters()} == {DEVICE}
    return Path("here.onnx").read_bytes() == Path("there.onnx").read_bytes() and bool(READ)

def read_before_the_file_is_written():
    net, x = fresh()
    net.to(DEVICE)
    result = fx2onnx.export(net, (x.to(DEVICE),))
    return max(READ, default=0)

def read_in_pieces():
    net, x = fresh()
    net.to(DEVICE)
    size, data_file.BUFFER_BYTES = data_file.BUFFER_BYTES, 4096
    fx2onnx.export(net, (x.to(DEVICE),), "pieces.onnx", external_data=True)
    data_file.BUFFER_BYTES = size
    return [max(READ), sum(READ)]

def verified():
    net, x = fresh()
    net.to(DEVICE)
    result = fx2onnx.export(net, (x.to(DEVICE),), "judged.onnx", dynamic_shapes=({0: "batch"},), verify=True)
    return result.report.verdict["ok"]

class Sequence(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 16)
        self._places = torch.randn(12, 16)
        self.lstm = torch.nn.LSTM(16, 8, batch_first=True)
        self.layers = [torch.randn(8, 8), {"last": torch.randn(8, 3)}]
        self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 1)

    def forward(self, ids):
        if ids.device != self._places.device:
            raise ValueError("lies in two places")
        x = self.table(ids) + self._places[:ids.shape[1]]
        if getattr(self, "casts", False):
            with torch.autocast("cpu", torch.bfloat16):  # which casts nothing that lies on the device
                return x @ self.layers[0].repeat(2, 1)
        if getattr(self, "knows_its_device", False):
            assert x.device == DEVICE
            x = x[..., :8]
        else:
            x = self.lstm(x)[0]
        x = x @ self.layers[0] + torch.ones(8, device=DEVICE).to(DEVICE)
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)  # eager PyTorch leaves it out
        return self.decoder(x, x, tgt_mask=mask) @ self.layers[1]["last"] + torch.zeros(3, device=self.own_device)

    @property
    def own_device(self):
        return self.table.weight.device

def sequence(**more):
    torch.manual_seed(0)
    net, ids = Sequence().eval(), torch.randint(0, 20, (2, 7))
    vars(net).update(more)
    net._places, net.layers = net._places.to(DEVICE), [net.layers[0].to(DEVICE), {"last": net.layers[1]["last"].to(DEVICE)}]
    net.to(DEVICE)
    net.lstm.flatten_parameters()
    return net, ids.to(DEVICE)

DYNAMIC = ({0: "batch", 1: "length"},)

def verified_on_the_cpu():
    net, ids = sequence()
    before = [*net.parameters(), *net.lstm._flat_weights, net._places, net.layers, *net.layers]
    result = fx2onnx.export(net, (ids,), "sequence.onnx", dynamic_shapes=DYNAMIC)
    COMPUTED.clear()
    verdict = fx2onnx.verify.verify(result, net, (ids,))
    tried = {size for each in verdict.tried for size in each.sizes.values()}
    after = [*net.parameters(), *net.lstm._flat_weights, net._places, net.layers, *net.layers]
    same = len(after) == len(before) and all(map(lambda one, two: one is two, before, after))
    return [verdict.ok, max(tried) > 7, sorted(set(COMPUTED)), same, verdict.notes]

def verified_there_alone():
    found = []
    for form in ("knows_its_device", "casts"):
        net, ids = sequence(**{form: True})
        result = fx2onnx.export(net, (ids,), "there.onnx", dynamic_shapes=DYNAMIC)
        verdict = fx2onnx.verify.verify(result, net, (ids,))
        found.append([verdict.ok, [each.name for each in verdict.tried], verdict.notes])
    return found

def functions():
    weight, x = torch.randn(4, 3).to(DEVICE), torch.randn(2, 4).to(DEVICE)
    scripted = torch.jit.trace(torch.nn.Linear(4, 3), torch.randn(2, 4)).to(DEVICE)
    found = []
    for function in (lambda x: x @ weight, torch.compile(torch.nn.Linear(4, 3).to(DEVICE)), scripted):
        result = fx2onnx.export(function, (x,), "function.onnx", dynamic_shapes=({0: "batch"},), verify=True)
        found.append(result.report.verdict["ok"])
    return found

def kernels():
    seen = set()
    class Net(torch.nn.Module):
        def forward(self, x):
            seen.add((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.enabled))
            return x * 2
    result = fx2onnx.export(Net(), (torch.ones(3),))
    seen.clear()
    torch.cuda.is_initialized = lambda: True  # as where another module lies on a GPU
    return [fx2onnx.verify.verify(result, Net(), (torch.ones(3),)).ok, *seen]

def located():
    import onnx
    net, ids = sequence()
    fx2onnx.export(net, (ids,), "wrong.onnx", dynamic_shapes=DYNAMIC)
    model = onnx.load("wrong.onnx")
    wrong = next(node for node in model.graph.node if node.op_type == "Add")
    wrong.op_type = "Sub"
    onnx.save(model, "wrong.onnx")
    first = fx2onnx.verify.locate("wrong.onnx", net, (ids,))
    return [wrong.name in first.nodes, first.stage]

def trained():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(DEVICE)
    rule = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x = torch.randn(5, 8).to(DEVICE)
    loss = lambda scores: (scores * scores).mean()
    fx2onnx.export_training(net, (x,), "training", loss=loss, optimizer=rule, verify=True)
    return {p.device for p in net.parameters()} == {DEVICE}

def device():
    _, x = fresh()
    y = x.to(DEVICE)
    equal = [torch.equal(y.cpu(), x), torch.equal((y @ y.t()).cpu(), x @ x.t())]
    return [str(y.device), *equal, y.t().is_contiguous(), len(READ)]

parts = {
    "sample on the CPU": lambda: same_file(lambda x: x),
    "sample on the device": lambda: same_file(lambda x: x.to(DEVICE)),
    "before": read_before_the_file_is_written,
    "pieces": read_in_pieces,
    "verified": verified,
    "on the CPU": verified_on_the_cpu,
    "there alone": verified_there_alone,
    "functions": functions,
    "kernels": kernels,
    "located": located,
    "trained": trained,
    "device": device,
}
for name, part in parts.items():
    try:
        print(json.dumps([name, part()]))
    except Exception:  # of one part, which its test shows; the others go on
        print(json.dumps([name, traceback.format_exc()]))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each part of the program gives, or how it failed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("devices"),
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.long
@pytest.mark.parametrize("sample", ["sample on the CPU", "sample on the device"])
def test_the_file_is_the_same(sample: str, found: dict[str, Any]) -> None:
    assert found[sample] is True


@pytest.mark.long
def test_nothing_is_computed_there_and_nothing_read_before_the_file_is_written(found: dict[str, Any]) -> None:
    assert found["before"] <= 96


@pytest.mark.long
def test_weights_are_read_piece_by_piece(found: dict[str, Any]) -> None:
    largest, in_all = found["pieces"]
    assert largest <= 4096
    assert in_all >= 64 * 96 * 4


@pytest.mark.long
def test_it_is_verified_there(found: dict[str, Any]) -> None:
    assert found["verified"] is True


@pytest.mark.long
def test_it_is_verified_on_the_cpu_where_inputs_that_it_does_not_take_end_no_device(found: dict[str, Any]) -> None:
    is_right, has_longer, computed, is_whole, notes = found["on the CPU"]
    assert is_right
    assert has_longer
    assert computed == []
    assert is_whole
    assert not any("device" in note for note in notes)


@pytest.mark.long
def test_what_runs_there_alone_is_verified_on_its_sample(found: dict[str, Any]) -> None:
    for is_right, tried, notes in found["there alone"]:
        assert is_right
        assert tried == ["sample"]
        assert any("no other sizes and no other integers are tried" in note for note in notes)


@pytest.mark.long
def test_functions_compiled_and_scripted_modules_are_verified(found: dict[str, Any]) -> None:
    assert found["functions"] == [True, True, True]


@pytest.mark.long
def test_a_gpu_in_use_changes_nothing_for_modules_on_the_cpu(found: dict[str, Any]) -> None:
    assert found["kernels"] == [True, [True, True]]


@pytest.mark.long
def test_a_wrong_node_is_found(found: dict[str, Any]) -> None:
    assert found["located"] == [True, "file"]


@pytest.mark.long
def test_training_is_verified(found: dict[str, Any]) -> None:
    assert found["trained"] is True


@pytest.mark.long
def test_the_device_is_one(found: dict[str, Any]) -> None:
    assert found["device"] == ["apart:0", True, True, False, 2]
