"""What cannot be trained is one error that names it."""

from __future__ import annotations

import linecache
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx

X, Y = torch.ones(2, 3), torch.ones(2, 2)


def refused(module: nn.Module, tmp_path: Path, **options: Any) -> fx2onnx.UserError:
    asked = {"loss": F.mse_loss, "targets": (Y,), **options}
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export_training(module, (X,), tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    return caught.value


def _line(error: fx2onnx.UserError) -> str:
    """The text of the line that the error names."""
    assert error.where is not None
    assert Path(error.where.file) == Path(__file__)
    return linecache.getline(__file__, error.where.line).strip().partition("  # ")[0]


class Partly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).exp()
        z = y * y
        y.add_(1)
        return z


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).round().detach()


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.beside = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.beside(x).detach()  # type: ignore[no-any-return]


class Still(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.fc(x)  # type: ignore[no-any-return]


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).argmax(1).float()


def test_a_loss_that_is_no_scalar(tmp_path: Path) -> None:
    error = refused(nn.Linear(3, 2), tmp_path, loss=lambda outputs, target: (outputs - target) ** 2)
    assert error.code == "E108"
    assert "[2, 2]" in error.why
    assert _line(error).startswith("error = refused(nn.Linear(3, 2), tmp_path, loss=lambda")


def test_a_loss_of_integers(tmp_path: Path) -> None:
    error = refused(nn.Linear(3, 2), tmp_path, loss=lambda outputs, target: outputs.argmax())
    assert error.code == "E108"
    assert "int64" in error.why


def test_a_loss_that_cannot_be_called(tmp_path: Path) -> None:
    assert refused(nn.Linear(3, 2), tmp_path, loss="mse").code == "E001"


def test_a_parameter_without_gradient_is_named_and_can_be_frozen(tmp_path: Path) -> None:
    error = refused(Partly(), tmp_path)
    assert error.code == "E108"
    assert "unused.weight, unused.bias" in error.what
    assert "frozen=" in error.next[0]
    done = fx2onnx.export_training(Partly(), (X,), tmp_path, loss=F.mse_loss, targets=(Y,), frozen=["unused."])
    assert [parameter.name for parameter in done.manifest.parameters] == ["used.weight", "used.bias"]


def test_a_loss_that_depends_on_nothing(tmp_path: Path) -> None:
    error = refused(Cut(), tmp_path)
    assert error.code == "E108"
    assert "any parameter" in error.what


def test_an_operator_without_gradient_in_the_way(tmp_path: Path) -> None:
    error = refused(Chosen(), tmp_path, targets=(torch.ones(2),))
    assert error.code == "E108"
    assert error.why == "torch.Tensor.argmax has no gradient"
    assert _line(error) == "return self.fc(x).argmax(1).float()"


def test_where_the_gradient_of_a_parameter_gets_lost(tmp_path: Path) -> None:
    error = refused(Beside(), tmp_path)
    assert "beside.weight" in error.what
    assert "torch.Tensor.detach" in error.why
    assert _line(error) == "return self.fc(x) + self.beside(x).detach()"


def test_a_forward_without_gradients(tmp_path: Path) -> None:
    error = refused(Still(), tmp_path)
    assert error.code == "E108"
    assert _line(error) == "return self.fc(x)"


def test_a_write_that_autograd_forbids(tmp_path: Path) -> None:
    """The value that the gradient of the product needs is overwritten."""
    module = InPlace()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        F.mse_loss(module(X), Y).backward()
    error = refused(module, tmp_path)
    assert error.code == "E101"
    assert "modified by an inplace operation" in error.why


def test_an_optimizer_that_is_not_known(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    error = refused(module, tmp_path, optimizer=torch.optim.ASGD(module.parameters()))
    assert error.code == "E001"
    assert "ASGD" in error.what
    assert "AdamW" in error.why
    assert refused(module, tmp_path, optimizer=torch.optim.SGD).why == "it is a class"


def test_an_optimizer_of_other_parameters(tmp_path: Path) -> None:
    error = refused(nn.Linear(3, 2), tmp_path, optimizer=torch.optim.SGD(nn.Linear(3, 2).parameters()))
    assert error.code == "E108"
    assert "weight" in error.what


@pytest.mark.parametrize(
    ("targets", "code"), [((Y, Y, Y, Y, Y, Y), "E001"), ((1,), "E001"), ({"input": Y}, "E001"), ((), "E101")]
)
def test_targets_that_do_not_fit(targets: Any, code: str, tmp_path: Path) -> None:
    assert refused(nn.Linear(3, 2), tmp_path, targets=targets).code == code


def test_a_loss_that_fails_is_named_with_its_targets(tmp_path: Path) -> None:
    error = refused(
        nn.Linear(3, 2), tmp_path, loss=F.cross_entropy, targets={"labels": torch.zeros(4, dtype=torch.int64)}
    )
    assert (error.code, error.what.partition(" failed")[0]) == ("E101", "the loss")
    assert "labels int64[4]" in error.next[0]


def test_a_module_that_fails_is_not_called_the_loss(tmp_path: Path) -> None:
    assert refused(nn.Linear(4, 2), tmp_path).what.startswith("the module failed")


@pytest.mark.parametrize("options", [{"frozen": ["nothing"]}, {"inputs": ["y"]}, {"dropout": "on"}, {"clip_norm": 0}])
def test_options_that_do_not_fit(options: dict[str, Any], tmp_path: Path) -> None:
    assert refused(nn.Linear(3, 2), tmp_path, **options).code == "E001"


def test_nothing_is_trained(tmp_path: Path) -> None:
    error = refused(nn.Linear(3, 2).requires_grad_(False), tmp_path)
    assert (error.code, error.what) == ("E108", "nothing is trained")


def test_what_is_transformed_is_not_said_to_be_in_the_way(tmp_path: Path) -> None:
    """Inside ``torch.func`` gradients are noted elsewhere; the line is the one that really cuts."""

    class Transformed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            own = {name: value.detach() for name, value in self.first.named_parameters()}
            loss = lambda given: torch.func.functional_call(self.first, given, (x,)).square().sum()  # noqa: E731
            return self.last(x @ torch.func.grad(loss)(own)["weight"])  # type: ignore[no-any-return]

    error = refused(Transformed(), tmp_path)
    assert error.code == "E108"
    assert "detach" in error.why
    assert "value.detach()" in _line(error)


def test_no_part_of_a_transform_is_said_to_have_no_gradient(tmp_path: Path) -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            jacobian = torch.func.vmap(torch.func.jacrev(lambda row: self.first(row).round()))(x)
            return self.last(jacobian.sum(-1))  # type: ignore[no-any-return]

    error = refused(Rounded(), tmp_path)
    assert (error.code, "no gradient" in error.why) == ("E108", False)


class Scaled(nn.Module):
    """Python reads a parameter and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.head(x) * math.exp(float(self.scale.detach())) * math.exp(float(n))


def test_numbers_that_python_reads() -> None:
    """A parameter is to be frozen, an input to be baked."""
    module, inputs = Scaled(), (torch.ones(3, 4), torch.tensor(3.0))

    def exported(frozen: tuple[str, ...], **options: Any) -> list[str]:
        training = fx2onnx.Training(F.mse_loss, (torch.ones(3, 4),), frozen=frozen)
        return fx2onnx.export(module, inputs, training=training, **options).report.input_names

    with pytest.raises(fx2onnx.UserError, match=r"test_errors\.py") as caught:
        exported((), bake=["n"])
    assert not [step for step in caught.value.next if "bake" in step]
    assert [step for step in caught.value.next if "frozen=['scale']" in step]
    with pytest.raises(fx2onnx.UserError) as caught:
        exported(("scale",))
    assert [step for step in caught.value.next if 'bake=["n"]' in step]
    assert exported(("scale",), bake=["n"], verify=True) == ["x", "target", "head.weight", "head.bias"]


class Warmed(nn.Module):
    """Python reads a buffer that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.head(x) * min(1.0, self.calls.item() / 4)  # type: ignore[no-any-return, operator]


def test_numbers_of_buffers_that_each_step_changes(tmp_path: Path) -> None:
    """What Python makes of them would be that of the first step in every one."""
    module = Warmed()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    options: dict[str, Any] = {"loss": lambda outputs: outputs.square().mean(), "optimizer": optimizer}
    with pytest.raises(fx2onnx.UserError, match="a buffer that forward changes") as caught:
        fx2onnx.export_training(module, (torch.randn(4, 3),), tmp_path / "steps", **options)
    assert caught.value.code == "E104"


def test_a_complex_parameter(tmp_path: Path) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).real

    error = refused(Turned(), tmp_path)
    assert (error.code, "scale" in error.what) == ("E108", True)


class Called(nn.Module):
    """A buffer of the name, which forward changes or does not."""

    def __init__(self, name: str, changes: bool) -> None:
        super().__init__()
        self.layer, self.name, self.changes = nn.Linear(3, 2), name, changes
        self.register_buffer(name, torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = getattr(self, self.name)
        if self.changes:
            own.mul_(0.5)
        return self.layer(x) * own


@pytest.mark.parametrize("name", ["x", "step", "loss", "output"])
def test_a_buffer_of_another_values_name(name: str, tmp_path: Path) -> None:
    """Beside the input, the optimizer's count and the outputs: a constant is called otherwise, a changed one cannot be."""
    for changes in (False, True):
        module = Called(name, changes)
        optimizer = torch.optim.AdamW(module.parameters())
        options: dict[str, Any] = {"loss": lambda y: y.pow(2).mean(), "optimizer": optimizer, "verify": True}
        if changes and name != "output":
            with pytest.raises(fx2onnx.UserError, match=f"E001.*changes the tensor {name} .*another value of the file"):
                fx2onnx.export_training(module, (X,), tmp_path / "changed", **options)
            continue
        fx2onnx.export_training(module, (X,), tmp_path / str(changes), **options)
