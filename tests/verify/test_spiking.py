"""Neurons that spike at a threshold: a sound file is right, one with another decay or threshold is found."""

from __future__ import annotations

import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.verify.marks import Marking

aten = torch.ops.aten


class Neuron(torch.nn.Module):
    """A leaky integrate-and-fire neuron over time, of which a spike takes the threshold off or everything."""

    def __init__(self, decay: float = 0.5, threshold: float = 1.0, *, form: str = "ge", clears: bool = False) -> None:
        super().__init__()
        self.decay, self.form, self.clears = decay, form, clears
        self.threshold = torch.nn.Buffer(torch.tensor(threshold))

    def fired(self, potential: torch.Tensor) -> torch.Tensor:
        above = potential - self.threshold
        if self.form == "ge":
            return (potential >= self.threshold).to(potential.dtype)
        return torch.heaviside(above, torch.ones(())) if self.form == "heaviside" else (above > 0).to(potential.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        potential, spikes = torch.zeros_like(x[0]), []
        for current in x.unbind(0):
            potential = self.decay * potential + current
            fired = self.fired(potential)
            potential = potential * (1 - fired) if self.clears else potential - fired * self.threshold
            spikes.append(fired)
        return torch.stack(spikes)


INPUTS = {
    "ones": torch.ones(5, 4, 6),
    "halves": torch.full((5, 4, 6), 0.5),
    "spikes": (torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(0)) > 0.5).float(),
}


@pytest.mark.long_cases(but=["halves-heaviside-False"])
@pytest.mark.parametrize(
    ("name", "form", "clears"),
    [
        ("ones", "ge", False),
        ("ones", "heaviside", True),
        ("ones", "above zero", False),
        ("spikes", "above zero", True),
        ("spikes", "heaviside", False),
        ("halves", "heaviside", False),
    ],
)
def test_decays_and_thresholds_are_told_from_rounding(name: str, form: str, clears: bool) -> None:
    args, sound = (INPUTS[name],), Neuron(form=form, clears=clears)
    verdict = verify(fx2onnx.export(sound, args), sound, args)
    assert verdict.ok, verdict.describe()
    for decay, threshold in ((0.6, 1.0), (0.5, 0.9)):
        wrong = Neuron(decay, threshold, form=form, clears=clears)
        assert not verify(fx2onnx.export(wrong, args), sound, args).ok, (decay, threshold)


def test_an_example_of_ones_is_tried_on_other_floats() -> None:
    class Squares(torch.nn.Module):
        def __init__(self, power: int) -> None:
            super().__init__()
            self.power = power

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**self.power

    args = (torch.ones(2, 3),)
    verdict = verify(fx2onnx.export(Squares(3), args), Squares(2), args)
    assert {row.inputs for row in verdict.rows if not row.ok} == {"between"}


@pytest.mark.parametrize("step", [(aten.heaviside.default, 1.0), (aten.sign.default,), (aten.gt.Scalar, 0)])
def test_what_is_taken_off_before_a_comparison_with_zero_is_a_mark(step: tuple[torch._ops.OpOverload, object]) -> None:
    marking, x = Marking(), torch.randn(3)
    marking.see(aten.sub.Tensor, (x, torch.tensor(1.5)))
    marking.see(step[0], (x, *step[1:]))
    assert 1.5 in marking.found().numbers
    marking = Marking()
    marking.see(aten.sub.Tensor, (x, torch.tensor(1.5)))
    marking.see(aten.gt.Scalar, (x, 2.0))
    assert marking.found().numbers == (2.0,)
