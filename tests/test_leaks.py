"""What an export leaves behind: nothing that it was given, and nothing that grows.

Weights lie over NumPy arrays, whose end is the end of the memory (a parameter may be gone while a view of it lives).
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import math
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

import fx2onnx
import fx2onnx.runner as ort
from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import tensor_info
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.symnode import DimNode, sym_int
from fx2onnx.sizes.assumptions import Assumption, Guard, Specialization
from fx2onnx.sizes.expr import Atom, Dim
from fx2onnx.sizes.facts import SizeFacts
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.solve import Equalities
from fx2onnx.torchcompat.fake_tensors import Leftover, fake_from_meta
from tests import process_state


@pytest.fixture(scope="module", autouse=True)
def what_was_there_stays() -> None:
    """What earlier tests of the process left, millions of objects, is not looked through at each collection here."""
    gc.collect()
    gc.freeze()


DYNAMIC: dict[str, Any] = {"dynamic_shapes": ({0: "batch"},)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("steps", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.relu(self.first(x))).reshape(x.shape[0], -1) + x.shape[0]


class Images(nn.Module):
    """Its weights are made anew by rewrites: a norm goes into a convolution, a matrix is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.conv(x[:, None, None]))[:, :, 0, :4])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, None])[0]


class Counting(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return super().forward(x) + self.steps


class Deciding(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found + 1 if found.sum() > 0 else found - 1


class Raising(Net):
    """A module whose branch only the data tells; one ends the run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        if found.sum() > 0:
            raise ValueError("too large")
        return found


class Specializing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + math.factorial(x.shape[0])


class SinglyOtherwise(Net):
    """A module with another program for a single row, which is recorded with the number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            x = x.squeeze(0)[None]
            return super().forward(x).exp()
        return super().forward(x)


class NeverSingle(Net):
    """Fails for a single row, in either of the further runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.view(3, 5) if x.shape[0] == 1 else x)


class Padding(Net):
    """Three decisions by a size, of each of which one branch serves both."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in (2, 3, 5):
            if x.shape[0] % factor != 0:
                x = nn.functional.pad(x, (0, 0, 0, factor - x.shape[0] % factor))
        return super().forward(x)


class Failing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"no {super().forward(x).shape}")


class Searching(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[x.sum(1) > 0]


class Mapping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.sin)(super().forward(x))


class Branching(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return torch.cond(found.sum() > 0, lambda y: y + 1, lambda y: y - 1, (found,))


class Complex(Net):
    """Fails in lowering."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(super().forward(x)[:, None].expand(-1, 8, 8))[0].abs()


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(super().forward(x))


def scale(op: Any, module: Any, x: Any, *, weights: dict[str, Any]) -> Any:
    return op.Mul(x, weights["weight"])


def unlucky(op: Any, module: Any, x: Any, *, weights: dict[str, Any]) -> Any:
    raise RuntimeError("a fault of the user's")


@dataclass(frozen=True)
class Kind:
    """A way to export. ``code``: the error it ends in. ``after``: what is done with the result."""

    module: Callable[[], nn.Module] = Net
    options: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    after: Callable[[Any, Path], object] = lambda result, folder: None
    is_torchs: bool = False
    """True if torch's own tracing makes cycles, so that the collector has to come by."""
    leaves_nodes: bool = False
    """True if ``torch.export`` itself keeps some of what it made, no weights among it."""


KINDS = {
    "static": Kind(),
    "dynamic": Kind(options=DYNAMIC),
    "auto": Kind(options={"dynamic_shapes": "auto"}),
    "file": Kind(options=DYNAMIC, after=lambda result, folder: result.save(folder / "m.onnx", external_data=True)),
    "proto": Kind(options=DYNAMIC, after=lambda result, folder: result.model_proto),
    "model taken": Kind(options=DYNAMIC, after=lambda result, folder: result.model, is_torchs=True),
    "restored": Kind(options=DYNAMIC, after=lambda result, folder: result.restore_outputs([1])),
    "profile": Kind(options=DYNAMIC | {"profile": True}, after=lambda result, folder: result.profile.table()),
    "verified": Kind(options=DYNAMIC | {"verify": True}),
    "folded": Kind(Images, DYNAMIC),
    "recurrent": Kind(Recurrent, DYNAMIC),
    "state": Kind(Counting, DYNAMIC | {"state": "io"}),
    "both branches": Kind(Deciding, DYNAMIC | {"data_branches": "if"}),
    "one branch": Kind(Raising, DYNAMIC | {"data_branches": "if"}),
    "control flow": Kind(Branching, DYNAMIC),
    "unknown size": Kind(Searching, DYNAMIC),
    "split": Kind(Mapping, DYNAMIC),
    "module calls": Kind(Scaled, DYNAMIC | {"custom_translations": {Scale: scale}}),
    "symbolic": Kind(options=DYNAMIC | {"capture": "symbolic"}, is_torchs=True),
    "torch.export": Kind(options=DYNAMIC | {"capture": "export"}, is_torchs=True, leaves_nodes=True),
    "data decides": Kind(Deciding, DYNAMIC | {"data_branches": "error"}, "E104"),
    "specialized": Kind(Specializing, DYNAMIC, "E105"),
    "other at one": Kind(SinglyOtherwise, DYNAMIC),
    "never one": Kind(NeverSingle, DYNAMIC),
    "one branch serves": Kind(Padding, DYNAMIC),
    "forward fails": Kind(Failing, DYNAMIC, "E101"),
    "state refused": Kind(Counting, DYNAMIC | {"state": "error"}, "E106"),
    "lowering fails": Kind(Complex, DYNAMIC, "E203"),
    "translation fails": Kind(Scaled, DYNAMIC | {"custom_translations": {Scale: unlucky}}, "E001"),
    "no such opset": Kind(options=DYNAMIC | {"opset_version": 5}, code="E001"),
    "write fails": Kind(options=DYNAMIC, after=lambda result, folder: result.save(folder / "none" / "m.onnx"), code="E301"),
}  # fmt: skip


def over_arrays(module: nn.Module) -> list[weakref.ref[Any]]:
    """Put the parameters over NumPy arrays. Gives references to those."""
    arrays = [parameter.detach().numpy().copy() for parameter in module.parameters()]
    for parameter, array in zip(module.parameters(), arrays, strict=True):
        parameter.data = torch.from_numpy(array)
    return [weakref.ref(array) for array in arrays]


def exported_and_dropped(kind: Kind, folder: Path) -> dict[str, weakref.ref[Any]]:
    """Export, drop everything; references to what was dropped."""
    module = kind.module().eval()
    held = {f"weight {index}": found for index, found in enumerate(over_arrays(module))}
    sample = np.ones((4, 8), np.float32)
    held |= {"module": weakref.ref(module), "sample": weakref.ref(sample)}
    code = ""
    try:
        result = fx2onnx.export(module, (torch.from_numpy(sample),), **kind.options)
        held["result"] = weakref.ref(result)
        kind.after(result, folder)
    except Fx2OnnxError as error:
        code = error.code
    assert code == kind.code
    return held


def alive(held: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, found in held.items() if found() is not None]


COUNTED = (Leftover, DimNode, torch.SymInt, torch.fx.Node, Tracer)


def counts() -> collections.Counter[str]:
    """Objects of capture that were made since ``uncollected`` began."""
    return collections.Counter(type(found).__name__ for found in gc.get_objects() if type(found) in COUNTED)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside but of what was made inside, which takes no time."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.long_cases("static", "dynamic", "auto", "file")
@pytest.mark.parametrize("name", KINDS)
def test_what_was_dropped_is_freed(name: str, tmp_path: Path) -> None:
    """At once, without the collector; where torch's own cycles forbid that, after one collection."""
    kind = KINDS[name]
    exported_and_dropped(kind, tmp_path)  # imports, and what is kept once
    with uncollected():
        held = exported_and_dropped(kind, tmp_path)
        if not kind.is_torchs:
            assert not alive(held)
        gc.collect()
        assert not alive(held)
        if not kind.leaves_nodes:
            assert counts() == {}


@pytest.mark.parametrize("name", ["data decides", "forward fails", "lowering fails"])
def test_an_error_that_is_kept_keeps_no_frames_of_ours(name: str, tmp_path: Path) -> None:
    """What its traceback holds are the user's frames and torch's; those of the exporter are empty, save export's own."""
    kind = KINDS[name]
    with pytest.raises(Fx2OnnxError) as caught:
        fx2onnx.export(kind.module(), (torch.ones(4, 8),), **kind.options)
    inside = Path(fx2onnx.__file__).parent
    traceback, held = caught.value.__traceback__, []
    while traceback is not None:
        frame = traceback.tb_frame
        if inside in Path(frame.f_code.co_filename).parents and frame.f_code.co_name != "export":
            held += list(frame.f_locals)
        traceback = traceback.tb_next
    assert held == []
    assert "forward" in str(caught.value)


PLAIN = (
    *(DimNode, ShapeEnv, Equalities, SizeFacts, Guard, Specialization, Assumption, Relation, Dim, Atom, SourceLocation, torch.SymInt),
    *(int, float, str, bool, type(None), dict, list, tuple, set, frozenset, weakref.ref, types.MappingProxyType),
)  # fmt: skip
"""What a size may lead to. C++ holds its node, so the collector sees no cycle through it."""


def test_a_size_leads_to_plain_data_only() -> None:
    """By walking whatever it refers to, after questions and with a tracer that could answer them."""
    env = ShapeEnv({"n": 4})
    tracer = Tracer(env, {}, lambda overload: True)
    size = sym_int(env, Dim.symbol("n"))
    fake = fake_from_meta(tracer.values.fake_mode, (size, 3), torch.float32, torch.device("cpu"))
    tracer.values.add_input("x", fake)
    assert size > 3
    assert tensor_info(fake).dims[0] == Dim.symbol("n")
    pending, seen, others = [size.node], set(), set()
    while pending:
        found = pending.pop()
        if id(found) in seen or isinstance(found, type):
            continue
        seen.add(id(found))
        if not isinstance(found, PLAIN) and type(found).__name__ != "_Environment":
            others.add(type(found))
            continue
        pending += gc.get_referents(found)
    assert len(seen) > 10
    assert others == set()


@pytest.mark.long
def test_sizes_outlive_their_capture() -> None:
    """A size that was left somewhere prints, compares and is decided as before."""
    left = []

    class Leaving(Net):
        def forward(self, x: torch.Tensor) -> Any:
            left.append(x.shape)
            return super().forward(x)

    fx2onnx.export(Leaving().eval(), (torch.ones(4, 8),), **DYNAMIC)
    gc.collect()
    size = left[0][0]
    assert str(size) == "batch"
    assert size > 3
    assert size * 2 == size + size


def test_a_dropped_session_gives_its_arrays_back(tmp_path: Path) -> None:
    fx2onnx.export(Net().eval(), (torch.ones(4, 8),), tmp_path / "m.onnx", external_data=True)
    with uncollected():
        session = ort.InferenceSession(str(tmp_path / "m.onnx"))
        (found,) = session.run(None, {"x": np.ones((4, 8), np.float32)})
        held = {"session": weakref.ref(session), "output": weakref.ref(found)}
        del session, found
        gc.collect()
        assert not alive(held)
        assert mapped(tmp_path) == []


def mapped(folder: Path) -> list[str]:
    """Files of ``folder`` that are mapped into memory."""
    return [one.path for one in psutil.Process().memory_maps() if str(folder) in one.path]


def modules_of(kind: str) -> list[str]:
    return [kind for found in gc.get_objects() if type(found).__name__ == kind]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)  # others may end a text at once
    LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=60, eos_token_id=2)).save_pretrained(folder)
    gc.collect()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("weights", ["copy", "reference"])
def test_an_exported_folder_leaves_no_model_and_no_mapped_file(weights: str, checkpoint: Path) -> None:
    """``reference``: the checkpoint's files are mapped while they are exported, beside the weights."""
    out = checkpoint if weights == "reference" else checkpoint.parent / "out"
    options = {"weights": "reference"} if weights == "reference" else {}
    done = fx2onnx.export_folder(f"hf:{checkpoint}", out, **options)
    assert "model.onnx" in done.files
    assert modules_of("LlamaForCausalLM")  # with its sample inputs, for who asks
    del done
    gc.collect()
    assert modules_of("LlamaForCausalLM") == []
    assert mapped(checkpoint) == []
    loaded = fx2onnx.load(out, engine="runner")
    assert loaded.generate(torch.tensor([[5, 6]]), max_new_tokens=2).shape == (1, 4)
    held = {"loaded": weakref.ref(loaded)}
    del loaded
    gc.collect()
    assert not alive(held)
    assert mapped(checkpoint.parent) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda patch: patch.setenv("FX2ONNX_LEFT", "1"), "environment[FX2ONNX_LEFT]"),
        (lambda patch: patch.setattr(torch.Tensor, "tolist", None), "torch.Tensor[tolist]"),
        (lambda patch: patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", "yes"), "HF_HUB_OFFLINE"),
        (lambda patch: patch.setattr("sys.argv", ["left"]), "arguments"),
    ],
)
def test_a_change_of_the_process_is_named(change: Callable[[Any], None], named: str) -> None:
    importlib.import_module("huggingface_hub.constants")
    with pytest.MonkeyPatch.context() as patch:
        before = process_state.snapshot()
        change(patch)
        assert [line.partition(":")[0] for line in process_state.changes(before, process_state.snapshot())] == [named]
