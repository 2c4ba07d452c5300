"""What a verification has to tell apart: files that are wrong where no sample looks, and right ones that look wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fx2onnx
from fx2onnx import Verdict, locate, verify
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.sources.seeding import seeded
from fx2onnx.verify.noise import Recording
from fx2onnx.verify.work import EFFORTS

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 8, generator=GENERATOR)
Edit = Callable[[onnx.ModelProto], None]


def edited(result: fx2onnx.ExportResult, folder: Path, edit: Edit) -> str:
    """The path of the file after ``edit``."""
    path = str(folder / "edited.onnx")
    model = result.model_proto
    edit(model)
    onnx.save(model, path)
    return path


def failing(verdict: Verdict) -> set[str]:
    return {row.output for row in verdict.rows if not row.ok}


class Padded(nn.Module):
    """Looks up ids and positions, and leaves out what is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 8), nn.Embedding(40, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids) + self.places.weight[: ids.shape[1]]
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def padded() -> tuple[nn.Module, tuple[torch.Tensor, ...], fx2onnx.ExportResult]:
    torch.manual_seed(0)
    module, args = Padded().eval(), (torch.randint(3, 20, (2, 6)), torch.ones(2, 6, dtype=torch.int64))
    shapes = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
    return module, args, fx2onnx.export(module, args, dynamic_shapes=shapes)


def bake_input(model: onnx.ModelProto) -> None:
    """The mask becomes a constant, as a fault of an exporter would make it one."""
    (mask,) = [value for value in model.graph.input if value.name == "mask"]
    model.graph.input.remove(mask)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 6), np.int64), "mask"))


def clip_ids(model: onnx.ModelProto, least: int, most: int) -> None:
    """Ids outside of a range are taken for its ends."""
    for node in model.graph.node:
        node.input[:] = ["ids.clipped" if name == "ids" else name for name in node.input]
    ends = [numpy_helper.from_array(np.array(end, np.int64), name) for end, name in ((least, "least"), (most, "most"))]
    model.graph.initializer.extend(ends)
    model.graph.node.insert(0, helper.make_node("Clip", ["ids", "least", "most"], ["ids.clipped"]))


def cut_table(model: onnx.ModelProto) -> None:
    """Positions behind the twelfth are zeros: twice the sample's."""
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name == "places.weight"]
    array = numpy_helper.to_array(table).copy()
    array[12:] = 0
    table.CopyFrom(numpy_helper.from_array(array, "renamed"))
    for node in model.graph.node:
        node.input[:] = ["renamed" if name == "places.weight" else name for name in node.input]


def forget_mask(model: onnx.ModelProto) -> None:
    """The mask is there, and read as ones."""
    for node in model.graph.node:
        node.input[:] = ["mask.ones" if name == "mask" else name for name in node.input]
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    model.graph.initializer.append(one)
    model.graph.node.insert(0, helper.make_node("Max", ["mask", "one"], ["mask.ones"]))


HARMS: dict[str, Edit] = {
    "ids above the sample's": lambda model: clip_ids(model, 0, 19),
    "ids below the sample's": lambda model: clip_ids(model, 3, 49),
    "positions behind twice the sample's": cut_table,
    "what is masked": forget_mask,
}


@pytest.mark.long
@pytest.mark.parametrize("harm", HARMS)
def test_what_no_sample_shows(harm: str, tmp_path: Path) -> None:
    module, args, result = padded()
    verdict = verify(result, module, args)
    assert verdict.ok, verdict.describe()
    path = edited(result, tmp_path, HARMS[harm])
    assert not verify(path, module, args).ok
    assert verify(path, module, args, seeds=()).ok == (harm != "positions behind twice the sample's")


def test_an_input_that_vanished_is_a_failure_by_name(tmp_path: Path) -> None:
    module, args, result = padded()
    path = edited(result, tmp_path, bake_input)
    verdict = verify(path, module, args)
    assert "mask" in failing(verdict)
    assert "bake" in verdict.describe()
    fixed = fx2onnx.export(module, args, bake=["mask"])
    fixed.save(tmp_path / "baked.onnx")
    by_file = verify(tmp_path / "baked.onnx", module, args)
    assert by_file.ok, by_file.describe()
    assert by_file.baked == ["mask"]
    assert by_file.ranges["mask"].constant


def test_one_number_of_a_weight_is_found_without_an_input_that_reads_it(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        (table,) = [tensor for tensor in model.graph.initializer if tensor.name == "words.weight"]
        array = numpy_helper.to_array(table).copy()
        array[44, 3] += 0.5
        table.CopyFrom(numpy_helper.from_array(array, table.name))

    module, args, result = padded()
    verdict = verify(edited(result, tmp_path, change), module, args, seeds=())
    assert failing(verdict) == {"words.weight"}
    assert "1 of 400 numbers" in verdict.describe()


class Filled(nn.Module):
    """Scores where a mask leaves them, and fill elsewhere."""

    def __init__(self, fill: float, off: float = 0.0, *, added: bool = False) -> None:
        super().__init__()
        self.fill, self.off, self.added = fill, off, added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x.sin() * (1 + self.off)
        is_out = (torch.arange(8) + torch.arange(3).unsqueeze(1)) % 3 == 0  # in every row and column some, in none all
        fill = torch.where(is_out, self.fill, 0.0)
        return scores + fill if self.added else torch.where(is_out, self.fill, scores)


@pytest.mark.long_cases(but=["True--10000.0"])
@pytest.mark.parametrize("fill", [torch.finfo(torch.float32).min, -1e4])
@pytest.mark.parametrize("added", [False, True])
def test_fill_swallows_no_error(fill: float, added: bool) -> None:
    right, wrong = Filled(fill, added=added), Filled(fill, 1e-4, added=added)
    assert verify(fx2onnx.export(right, (X,)), right, (X,)).ok
    assert not verify(fx2onnx.export(wrong, (X,)), right, (X,)).ok


class Detections(nn.Module):
    """Boxes in pixels and scores below one, in one tensor."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :4].abs() * 640, torch.sigmoid(x[:, 4:]) * (1 + self.off)], 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_units_that_stand_beside_each_other_are_judged_each(rows: int) -> None:
    x = torch.randn(rows, 6, generator=GENERATOR)
    x[0, :4] = 2.0  # a box as large as the picture
    result = fx2onnx.export(Detections(1e-4), (x,))
    assert verify(result, Detections(1e-4), (x,)).ok
    verdict = verify(result, Detections(), (x,), seeds=())
    assert not verdict.ok
    assert verdict.worst().allowed < 1e-4  # type: ignore[union-attr]


class Router(nn.Module):
    """Picks the better of two nearly equal experts, by a softmax of small numbers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.gate = nn.Parameter(torch.randn(8, 2, generator=generator) * 1e-3)
        self.gate.data[:, 1] = self.gate.data[:, 0] * (1 + 3e-7)
        self.experts = nn.Parameter(torch.randn(2, 8, 8, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.softmax(x @ self.gate, -1).argmax(-1)
        return torch.einsum("ni,nij->nj", x, self.experts[chosen])


class OtherRouter(Router):
    """Rounds its scores otherwise, as an engine may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ self.gate, -1)
        scores = scores + scores * torch.tensor([0.0, 1.5e-7])
        return torch.einsum("ni,nij->nj", x, self.experts[scores.argmax(-1)])


def test_nearly_equal_scores_of_a_router_are_no_fault() -> None:
    x = torch.randn(32, 8, generator=GENERATOR)
    result, wrong = fx2onnx.export(OtherRouter(), (x,)), OtherRouter()
    assert not torch.equal(OtherRouter()(x), Router()(x))
    verdict = verify(result, Router(), (x,), seeds=())
    assert verdict.ok, verdict.describe()
    wrong.experts.data[1] += 0.05
    verdict = verify(fx2onnx.export(wrong, (x,)), Router(), (x,), seeds=())
    assert "output" in failing(verdict)


class Ties(nn.Module):
    """Takes some of many equal scores: PyTorch does not say which."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.topk(torch.relu(x - 5.0), 3, sorted=False)
        return found.values, x.gather(1, found.indices)


def test_any_of_equal_scores_may_be_taken() -> None:
    x = torch.randn(6, 64, generator=GENERATOR)
    verdict = verify(fx2onnx.export(Ties(), (x,)), Ties(), (x,), seeds=())
    assert verdict.ok, verdict.describe()


class Ranked(nn.Module):
    """The number of a rank in each row, and where PyTorch happened to find it."""

    def __init__(self, rank: int | None, keepdim: bool = False) -> None:
        super().__init__()
        self.rank, self.keepdim = rank, keepdim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rank is None:
            found = x.median(1, self.keepdim)
        else:
            found = x.kthvalue(self.rank, 1, self.keepdim)
        return found.values, found.indices


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("rank", [None, 2])
def test_any_place_of_equal_numbers_may_be_named(rank: int | None, keepdim: bool) -> None:
    x = torch.randint(0, 3, (16, 65), generator=GENERATOR).float()
    asked = Ranked(rank, keepdim)
    result = fx2onnx.export(asked, (x,))
    verdict = verify(result, asked, (x,), seeds=())
    assert verdict.ok, verdict.describe()
    distinct = torch.rand(16, 65, generator=GENERATOR)
    assert failing(verify(result, Ranked(40, keepdim), (distinct,), seeds=())) == {"output_0", "output_1"}


class Quantised(nn.Module):
    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x * 0.37, self.step, 0, -128, 127) * 3


def test_steps_that_are_off_are_no_rounding() -> None:
    x = torch.randn(64, 64, generator=GENERATOR)
    result = fx2onnx.export(Quantised(0.02), (x,))
    verdict = verify(result, Quantised(0.02), (x,))
    assert verdict.ok, verdict.describe()
    assert not verify(fx2onnx.export(Quantised(0.0201), (x,)), Quantised(0.02), (x,), seeds=()).ok


class Spectrogram(nn.Module):
    """log of a power spectrum, of which some is nearly silent: onnxruntime's STFT is off by much more than PyTorch's."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off = off
        self.register_buffer("window", torch.hann_window(400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.stft(x, 400, 160, window=self.window, return_complex=True).abs() ** 2
        return torch.log10(found.clamp(min=1e-10)) * (1 + self.off)


@pytest.mark.long
def test_a_spectrum_is_as_right_as_its_engine() -> None:
    time = torch.arange(3200) / 16000
    x = (torch.sin(time * 2764.6) + 0.3 * torch.sin(time * 9000))[None]
    verdict = verify(fx2onnx.export(Spectrogram(), (x,)), Spectrogram(), (x,))
    assert verdict.ok, verdict.describe()
    assert not verify(fx2onnx.export(Spectrogram(0.01), (x,)), Spectrogram(), (x,), seeds=()).ok


class LowPass(nn.Module):
    """Keeps the lowest frequencies of an image, as Fourier neural operators do."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.fft.rfft2(x)
        kept = torch.zeros_like(found)
        kept[..., :3, :3] = found[..., :3, :3] * (1 + self.off)
        return torch.fft.irfft2(kept, s=x.shape[-2:])


@pytest.mark.long
def test_transforms_of_odd_lengths_are_as_right_as_their_engine() -> None:
    """onnxruntime's DFT of a length that is no power of two is off by more, the longer it is."""
    x, sizes = torch.randn(2, 3, 12, 10), {"x": {0: "batch", 2: "height", 3: "width"}}
    result = fx2onnx.export(LowPass(), (x,), dynamic_shapes=sizes)
    for seed in range(3):
        other = torch.randn(1, 3, (208, 360, 500)[seed], 4, generator=torch.Generator().manual_seed(seed))
        verdict = verify(result, LowPass(), (other,), seeds=())
        assert verdict.ok, verdict.describe()
    assert not verify(fx2onnx.export(LowPass(0.01), (x,), dynamic_shapes=sizes), LowPass(), (x,), seeds=()).ok


class Counter(nn.Module):
    """Returns its own buffer, after it has changed it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += x.sum()
        return x * 2, self.count


def test_a_buffer_that_is_returned_is_what_forward_made_of_it() -> None:
    module = Counter()
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,))
    assert verdict.ok, verdict.describe()
    assert module.count.tolist() == [0.0, 0.0]


class WithoutTrain(nn.Linear):
    def train(self, mode: bool = True) -> nn.Module:
        raise NotImplementedError("Calling train() is not supported yet.")


def test_a_modules_own_train_is_not_called() -> None:
    module = WithoutTrain(8, 4)
    plain = nn.Linear(8, 4)
    plain.load_state_dict(module.state_dict())
    verdict = verify(fx2onnx.export(plain, (X,)), module, (X,))
    assert verdict.ok, verdict.describe()
    assert module.training


class Lowest(nn.Module):
    """Fills with the lowest number of the dtype that it sees, and casts to float32 on its way."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.linear, self.off = nn.Linear(8, 8), off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x).float()
        lowest = torch.full_like(hidden, torch.finfo(hidden.dtype).min)
        return torch.softmax(torch.where(hidden > 0, hidden, lowest) + lowest * 0.5, -1) + hidden + self.off * hidden


def test_float64_sees_the_dtypes_of_float32() -> None:
    """``module.double()`` has another lowest number, and the cast would round again."""
    from fx2onnx.capture.python.inputs import bind
    from fx2onnx.verify.eager import Eager

    module = Lowest().eval()
    eager = Eager(module, bind(module.forward, (X,), {}, None))
    (exact,) = eager.in_float64([X], [])
    assert exact.dtype == np.float64
    assert np.isfinite(exact).all()
    wide = (X.double() @ module.linear.weight.double().t() + module.linear.bias.double()).detach().numpy()
    lowest = float(torch.finfo(torch.float32).min)
    masked = np.where(wide > 0, wide, lowest) + lowest * 0.5
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    np.testing.assert_allclose(exact, weights / weights.sum(-1, keepdims=True) + wide, rtol=1e-14)


class Transformed(nn.Module):
    """A transform of functions in forward, of a function with a layer."""

    def __init__(self, transform: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.transform = nn.Linear(8, 3), transform

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)).pow(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.transform(self.rows, x)


TRANSFORMS: dict[str, Callable[..., torch.Tensor]] = {
    "grad": lambda f, x: vmap(grad(lambda row: f(row).sum()))(x),
    "vjp": lambda f, x: vjp(f, x)[1](f(x).cos())[0],
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),))[1],
    "jacrev": lambda f, x: vmap(jacrev(f))(x),
    "jacfwd": lambda f, x: vmap(jacfwd(f))(x),
    "hessian": lambda f, x: vmap(hessian(lambda row: f(row).sum()))(x),
}


@pytest.mark.long_cases("jvp")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_judges_run_inside_transforms_of_functions(name: str) -> None:
    """Forward-mode derivatives have tensors of zeros without memory, and vmap changes the sizes of tensors in place."""
    from fx2onnx.capture.python.inputs import bind
    from fx2onnx.verify.eager import Eager
    from fx2onnx.verify.rounding import Moved

    with seeded(0):
        module = Transformed(TRANSFORMS[name]).eval()
    eager = Eager(module, bind(module.forward, (X,), {}, None))
    (plain,), (exact,) = eager.run([X]), eager.in_float64([X], [])
    module.double()
    truth = module(X.double()).detach().numpy()
    module.float()
    np.testing.assert_allclose(exact, truth, rtol=1e-13, atol=1e-15)
    (moved,) = eager.moved([X], [], Moved(1, 8.0))
    assert 0 < np.abs(moved - plain).max() < 1e-3


def test_a_verdict_says_what_it_covered(tmp_path: Path) -> None:
    module, args, result = padded()
    result.save(tmp_path / "m.onnx")
    verdict = verify(tmp_path / "m.onnx", module, args)
    said = verdict.as_dict()
    assert said["versions"].keys() >= {"torch", "runner", "onnxruntime"}
    assert said["seeds"] == [1]
    assert (said["ranges"]["ids"]["least"], said["ranges"]["ids"]["largest"]) == (0.0, 49.0)
    assert said["ranges"]["mask"]["least"] == 0.0
    assert {"batch": 3, "length": 7} in [tried["sizes"] for tried in said["tried"]]
    assert said["worst"]["max_abs_error"] <= said["worst"]["allowed"]
    assert any("length 1" in tried["name"] for tried in said["tried"])
    verdict.write_into(tmp_path / "m.onnx")
    verdict.write_into(tmp_path / "m.onnx")
    written = [entry for entry in onnx.load(tmp_path / "m.onnx").metadata_props if entry.key == "fx2onnx.verdict"]
    assert len(written) == 1
    assert '"ok": true' in written[0].value
    assert verify(tmp_path / "m.onnx", module, args, seeds=()).ok


@pytest.mark.long
def test_probabilities_of_nearly_nothing_are_as_exact_as_an_engine_has_them() -> None:
    """onnxruntime's Sigmoid is off by 7e-8 wherever its result is small."""

    class Scores(nn.Module):
        def __init__(self, shift: float = 12.0) -> None:
            super().__init__()
            self.shift = shift

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x - self.shift)

    x = torch.rand(4, 64)
    assert verify(fx2onnx.export(Scores(), (x,)), Scores(), (x,)).ok
    assert not verify(fx2onnx.export(Scores(12.1), (x,)), Scores(), (x,)).ok


def test_what_is_too_much_work_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, result = padded()
    monkeypatch.setitem(EFFORTS, "quick", (0.0, 0.0))
    verdict = verify(result, module, args, effort="quick")
    assert "seed 1: effort=quick leaves it out" in verdict.left_out
    assert [bool(tried.sizes) for tried in verdict.tried] == [False, True], (
        "a file with dynamic sizes is tried at others"
    )


def test_a_size_that_eager_pytorch_runs_by_broadcasting_alone_is_none() -> None:
    """A single row of x, taken for all of them, where another input says how many rows there are."""

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            return (x + places.sum(-1, keepdim=True)).reshape(-1, 2, 3)

    args = (torch.rand(6, 3), torch.rand(6, 2))
    result = fx2onnx.export(Rows(), args)
    result.model.graph.inputs[0].shape = ir.Shape(["rows", 3])  # as where the size depends on data
    verdict = verify(result, Rows(), args)
    assert verdict.ok, verdict.describe()
    assert any("would broadcast" in text for text in verdict.left_out), verdict.left_out


class Cut(nn.Module):
    """As many rows as the data says; a single one is broadcast."""

    def forward(self, lengths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        count = int(lengths.max())
        return x[:, :count] + torch.arange(count)[:, None]


CUT = (torch.tensor([3, 6]), torch.rand(2, 9, 4))
CUT_SIZES = {"lengths": {0: "b"}, "x": {0: "b", 1: "t"}}


def test_a_check_that_a_size_of_1_breaks_is_left_out_and_said() -> None:
    result = fx2onnx.export(Cut(), CUT, dynamic_shapes=CUT_SIZES)
    verdict = verify(result, Cut(), CUT)
    assert verdict.ok, verdict.describe()
    said = [text for text in verdict.left_out if "refuses a size of 1, which eager PyTorch broadcasts" in text]
    assert {text.split(": ")[1].split()[0] for text in said} == {"runner", "onnxruntime"}
    with pytest.raises(UserError, match=r"the inputs break a condition of the file: .* has to be true"):
        InferenceSession(result.model_proto).run(None, {"lengths": CUT[0].numpy(), "x": CUT[1][:, :1].numpy()})


def test_a_graph_that_holds_at_the_given_sizes_alone_is_a_fault_of_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.verify.compare.refused", lambda *_: "")
    found = locate(fx2onnx.export(Cut(), CUT, dynamic_shapes=CUT_SIZES), Cut(), CUT)
    assert found is not None
    assert found.stage == "capture", found.describe()
    assert "t 1" in found.on


def test_values_that_eager_pytorch_refuses_are_replaced_by_milder_ones() -> None:
    class Few(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if int(ids.max()) > 20:
                raise ValueError("too large")
            return ids * 2

    ids = torch.tensor([[3, 20, 5]])
    result = fx2onnx.export(Few(), (ids,), data_branches="if")
    verdict = verify(result, Few(), (ids,))
    assert verdict.ok, verdict.describe()
    assert any("too large" in text and "milder" in text for text in verdict.left_out)
    assert verdict.ranges["ids"].largest == 20


@pytest.mark.parametrize("declared", [[2, 9], [2, 8, 1], ["batch", "length"]])
def test_declared_sizes_of_outputs_are_true(declared: list[int | str], tmp_path: Path) -> None:
    def declare(model: onnx.ModelProto) -> None:
        (output,) = model.graph.output
        output.CopyFrom(helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, declared))

    module, args, result = padded()
    verdict = verify(edited(result, tmp_path, declare), module, args, engines=["runner"])
    assert not verdict.ok
    assert "declares" in verdict.describe()


class Totals(nn.Module):
    """Totals of any number of rows, none included."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


class OneForNone(Totals):
    """Totals with another result where there are no rows, and only there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + (1 - torch.ones_like(x[:, 0]).sum().clamp(max=1))


@pytest.mark.parametrize(("module", "is_right"), [(Totals(), True), (OneForNone(), False)])
def test_what_eager_pytorch_makes_of_nothing(module: nn.Module, is_right: bool) -> None:
    args = (torch.randn(3, 4),)
    result = fx2onnx.export(module, args, dynamic_axes={"x": {0: "rows"}})
    verdict = verify(result, Totals(), args)
    assert "sizes rows 0" in [each.name for each in verdict.tried]
    assert {row.inputs for row in verdict.rows if not row.ok} == (set() if is_right else {"sizes rows 0"})


def test_a_file_that_refuses_what_is_empty_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    nodes = [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = onnx.numpy_helper.from_array(np.array([0, -1]), "shape")
    types = [onnx.helper.make_tensor_value_info(name, 1, ["rows", 4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "g", types[:1], types[1:], [shape])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    verdict = verify(path, nn.Identity(), (torch.randn(3, 4),))
    assert verdict.ok, verdict.describe()
    assert [text for text in verdict.left_out if "runner refuses what is empty" in text]


class Bags(nn.Module):
    """PyTorch does not look at the offsets of such bags: others than these end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(6, 4, mode="max", padding_idx=0)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.table(ids, offsets)


def test_offsets_of_bags_are_drawn_within_their_ids() -> None:
    args, bags = (torch.tensor([1, 5, 2, 0, 3]), torch.tensor([0, 2])), Bags().eval()
    verdict = verify(fx2onnx.export(bags, args, dynamic_shapes=({0: "ids"}, {0: "bags"})), bags, args)
    assert verdict.ok, verdict.describe()
    for offsets in ([3, 2], [0, 9], [2, 3], []):
        with Recording(), pytest.raises(IndexError, match="do not rise from 0 to 5"):
            bags(args[0], torch.tensor(offsets, dtype=torch.int64))
    with Recording(), pytest.raises(IndexError, match="a table of 6 does not have"):
        bags(torch.tensor([1, 6]), args[1])
