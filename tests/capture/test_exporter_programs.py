"""Programs of the subjects of PyTorch's own exporter tests: right at other sizes in both engines, and torch's own examples."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._export.db.examples import all_examples

import fx2onnx
from fx2onnx.runner import InferenceSession
from fx2onnx.verify.arrays import to_numpy
from tests.capture.exporter_programs import CASES
from tests.support import check, flat

EXAMPLES: Any = all_examples()


@pytest.mark.long_cases("a condition by data", "a loop", "a map", "nested conditions")
@pytest.mark.parametrize("name", sorted(CASES))
def test_programs_at_other_sizes(name: str) -> None:
    case = CASES[name]
    program = case.program() if isinstance(case.program, type) else case.program
    check(program, case.args, others=case.others, dynamic_shapes=case.shapes)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_of_torch(name: str) -> None:
    example = EXAMPLES[name]
    named: dict[str, Any] = dict(example.example_kwargs or {})
    shapes = {} if example.dynamic_shapes is None else {"dynamic_shapes": example.dynamic_shapes}
    result = fx2onnx.export(example.model, example.example_args, kwargs=named, **shapes)
    given = torch.utils._pytree.tree_leaves((example.example_args, named))
    feeds = dict(
        zip(
            (value.name for value in result.model_proto.graph.input),
            (to_numpy(leaf) for leaf in given if isinstance(leaf, torch.Tensor)),
            strict=False,
        )
    )
    with torch.no_grad():
        expected = flat(example.model(*copy.deepcopy(example.example_args), **copy.deepcopy(named)))
    found = InferenceSession(result.model_proto.SerializeToString()).run(None, feeds)
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(got), torch.from_numpy(want), rtol=1e-4, atol=1e-5)
