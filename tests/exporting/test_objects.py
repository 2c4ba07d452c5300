"""Objects among the arguments that hold tensors: these are inputs, and what forward changes in the objects outputs."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers as T
from torch import nn

import fx2onnx
from fx2onnx import locate
from fx2onnx.runner import InferenceSession

ENGINES = [InferenceSession, onnxruntime.InferenceSession]
X = torch.arange(3.0)


class Slotted:
    __slots__ = ("h", "items")

    def __init__(self) -> None:
        self.h, self.items = torch.ones(3), [torch.ones(3)]


class Own:
    def __init__(self) -> None:
        self.h, self.items, self.inner = torch.ones(3), [torch.ones(3)], Slotted()


@dataclass
class Data:
    h: torch.Tensor = field(default_factory=lambda: torch.ones(3))
    items: list[torch.Tensor] = field(default_factory=lambda: [torch.ones(3)])


KINDS: dict[str, Callable[[], Any]] = {
    "namespace": lambda: types.SimpleNamespace(h=torch.ones(3), items=[torch.ones(3)], nested={"a": (torch.ones(3), 1)}),
    "own": Own,
    "slots": Slotted,
    "dataclass": Data,
    "distribution": lambda: torch.distributions.Normal(torch.ones(3), torch.ones(3)),
}  # fmt: skip


class Steps(nn.Module):
    def forward(self, x: torch.Tensor, state: Any) -> torch.Tensor:
        y = x + state.h * state.items[0]
        state.h = state.h * 0.5 + y
        state.items[0].add_(1)
        state.items.append(y)
        return y


def _ran(result: Any, engine: Any, feeds: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    session = engine(result.model_proto.SerializeToString())
    found = session.run(None, {name: value.detach().numpy() for name, value in feeds.items()})
    return dict(zip(result.report.output_names, found, strict=True))


@pytest.mark.parametrize("kind", ["namespace", "own", "slots", "dataclass"])
@pytest.mark.parametrize("state", ["warn", "drop", "error", "io"])
def test_tensors_in_objects_are_inputs_and_their_new_values_outputs(kind: str, state: str) -> None:
    given = KINDS[kind]()
    h, items = given.h, [*given.items]
    result = fx2onnx.export(Steps(), (X, given), state=state)
    assert given.h is h
    assert all(one is two for one, two in zip(given.items, items, strict=True))
    dot = "_" if kind == "dataclass" else "."
    assert {f"state{dot}h", f"state{dot}items{dot}0"} <= {*result.report.input_names}
    assert not result.report.warnings
    other = KINDS[kind]()
    other.h, other.items = torch.tensor([1.0, 5.0, 2.0]), [torch.tensor([3.0, 1.0, 2.0])]
    feeds = {name: torch.ones(3) for name in result.report.input_names}
    feeds |= {"x": X, f"state{dot}h": other.h.clone(), f"state{dot}items{dot}0": other.items[0].clone()}
    for engine in ENGINES:
        own = copy.deepcopy(other)
        found, want = _ran(result, engine, feeds), Steps()(X, own)
        np.testing.assert_allclose(found["output"], want, rtol=1e-6)
        np.testing.assert_allclose(found[f"state{dot}h.next"], own.h, rtol=1e-6)
        for place in (0, 1):
            np.testing.assert_allclose(found[f"state{dot}items{dot}{place}.next"], own.items[place], rtol=1e-6)


@pytest.mark.parametrize("kind", ["namespace", "own", "dataclass"])
def test_calls_with_objects_verify_at_other_sizes(kind: str) -> None:
    result = fx2onnx.export(Steps(), (X, KINDS[kind]()), verify=True, dynamic_shapes="auto")
    assert result.report.verdict["ok"]
    assert len(result.report.verdict["tried"]) > 1
    assert locate(result, Steps(), (X, KINDS[kind]())) is None


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: "n"}, "state": {"h": {0: "n"}, "items.0": {0: "n"}}},
        {"x": {0: "n"}, "state.h": {0: "n"}, "state.items.0": {0: "n"}},
        ({0: "n"}, [{0: "n"}, {0: "n"}]),
    ],
    ids=["by attribute", "by input", "in order"],
)
def test_dynamic_shapes_name_tensors_in_objects(shapes: Any) -> None:
    result = fx2onnx.export(Steps(), (X, Slotted()), dynamic_shapes=shapes)
    assert [[str(dim) for dim in value.shape] for value in result.model.graph.inputs] == [["n"]] * 3


def test_axes_and_input_names_name_tensors_in_objects() -> None:
    axes = {name: {0: "n"} for name in ("x", "state.h", "state.items.0")}
    result = fx2onnx.export(Steps(), (X, Slotted()), dynamic_axes=axes)
    assert [[str(dim) for dim in value.shape] for value in result.model.graph.inputs] == [["n"]] * 3
    result = fx2onnx.export(Steps(), (X, Slotted()), input_names=["a", "b", "c"], verify=True)
    assert result.report.input_names == ["a", "b", "c"]
    assert result.report.output_names[1:] == ["c.next", "b.next", "state.items.1.next"]


def test_objects_that_forward_only_reads_have_no_outputs() -> None:
    def forward(x: torch.Tensor, normal: Any) -> torch.Tensor:
        return normal.log_prob(x)

    result = fx2onnx.export(forward, (X, KINDS["distribution"]()), verify=True)
    assert result.report.input_names == ["x", "normal.loc", "normal.scale"]
    assert result.report.output_names == ["output"]


def test_one_tensor_in_two_places_is_two_inputs() -> None:
    """As in dicts and in arguments of their own; forward that writes into one of them is told of."""

    def forward(x: torch.Tensor, state: Any) -> torch.Tensor:
        state.a.add_(x)
        return state.b * 2

    one = torch.ones(3)
    with pytest.warns(
        fx2onnx.ExportWarning, match=r"state\.a, which shares memory with state\.b; in the file they are two"
    ):
        result = fx2onnx.export(forward, (X, types.SimpleNamespace(a=one, b=one)), verify=True)
    assert result.report.input_names == ["x", "state.a", "state.b"]
    given = {"x": X, "state.a": torch.ones(3), "state.b": torch.tensor([5.0, 6.0, 7.0])}
    found = _ran(result, InferenceSession, given)
    assert found["output"].tolist() == [10.0, 12.0, 14.0]
    assert found["state.a.next"].tolist() == (X + 1).tolist()


def test_numbers_that_forward_changes_in_an_object_are_said() -> None:
    def forward(x: torch.Tensor, state: Any) -> torch.Tensor:
        state.count += 1
        return x * state.h

    given = types.SimpleNamespace(h=torch.ones(3), count=0)
    result = fx2onnx.export(forward, (X, given))
    assert given.count == 0
    assert ["state.count" in text for text in result.report.warnings] == [True]
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(forward, (X, given), state="error")
    assert caught.value.code == "E106"


def _multiplies(factor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor


HELD = torch.ones(3)
CONSTANTS: dict[str, tuple[Any, Callable[[torch.Tensor, Any], torch.Tensor], str]] = {
    "closure": (_multiplies(HELD), lambda x, given: given(x), "given is a function"),
    "partial": (functools.partial(torch.mul, HELD), lambda x, given: given(x), "given is a partial"),
    "keyword": (functools.partial(torch.mul, other=HELD), lambda x, given: given(x), "given is a partial"),
    "function in an object": (types.SimpleNamespace(h=HELD, f=_multiplies(HELD)), lambda x, given: given.f(x) + given.h, "given.f is a function"),
    "array beside a tensor": (
        types.SimpleNamespace(h=HELD, a=np.ones(3)), lambda x, given: x + torch.from_numpy(given.a) + given.h, "given.a is a ndarray",
    ),
    "array": (np.ones(3), lambda x, given: x + torch.from_numpy(given), "given is a ndarray"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSTANTS)
def test_what_is_no_input_is_said(kind: str) -> None:
    given, function, said = CONSTANTS[kind]
    result = fx2onnx.export(lambda x, given: function(x, given), (X, given))
    assert [line.partition(":")[0] for line in result.report.warnings] == [f"the argument {said}"]
    for session in (engine(result.model_proto.SerializeToString()) for engine in ENGINES):
        feeds = {name: np.float32([1, 2, 3]) for name in result.report.input_names}
        own = types.SimpleNamespace(**vars(given) | {"h": torch.tensor([1.0, 2, 3])}) if hasattr(given, "h") else given
        np.testing.assert_allclose(session.run(None, feeds)[0], function(torch.tensor([1.0, 2, 3]), own))


def test_arguments_that_share_memory_are_said() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    x = torch.ones(4)
    for args, count in (((x, x), 1), ((x, x[2:]), 1), ((x[:2], x[2:]), 0)):
        warnings = fx2onnx.export(forward, args).report.warnings
        assert sum("which shares memory with y" in line for line in warnings) == count


def test_lists_and_dicts_of_objects() -> None:
    def forward(x: torch.Tensor, states: list[Any]) -> torch.Tensor:
        for each in states:
            x = each["s"].h = x + each["s"].h
        return x

    given = [{"s": types.SimpleNamespace(h=torch.ones(3))} for _ in range(2)]
    result = fx2onnx.export(forward, (X, given), verify=True)
    assert result.report.input_names == ["x", "states_0_s.h", "states_1_s.h"]
    assert result.report.output_names == ["output", "states_0_s.h.next", "states_1_s.h.next"]


def test_torch_export_and_symbolic_tracing_refuse_objects() -> None:
    for capture, code in (("export", "E107"), ("symbolic", "E102")):
        with pytest.raises(fx2onnx.UserError, match=r"state\.h") as caught:
            fx2onnx.export(Steps(), (X, Slotted()), capture=capture)
        assert caught.value.code == code


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SIZES, num_key_value_heads=1)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=32)),
}
TOKEN = torch.tensor([[7]])


def _cache(model: Any, length: int, cache: Any = None) -> Any:
    ids = torch.arange(length)[None] * 3 % 50
    with torch.no_grad():
        return model(ids, past_key_values=cache, use_cache=True).past_key_values


def _tensors(cache: Any) -> dict[str, torch.Tensor]:
    names = {"keys": "key", "values": "value", "cumulative_length": "cumulative_length"}
    return {
        f"past_key_values.{place}.{name}": vars(layer)[attribute]
        for place, layer in enumerate(cache.layers)
        for attribute, name in names.items()
        if isinstance(vars(layer).get(attribute), torch.Tensor)
    }


@pytest.mark.long_cases(but=["llama-dynamic"])
@pytest.mark.parametrize("form", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_a_cache_of_transformers_is_inputs_and_outputs(name: str, form: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    make = (lambda: None) if form == "dynamic" else lambda: T.StaticCache(config=model.config, max_cache_len=12)
    cache = _cache(model, 5, make())
    held = _tensors(cache)
    numbers = {key: value.clone() for key, value in held.items()}
    axes = {key: {2: "past"} for key, value in held.items() if value.dim() == 4} if form == "dynamic" else None
    kwargs = {"input_ids": TOKEN, "past_key_values": cache, "use_cache": True}
    result = fx2onnx.export(model, (), kwargs=kwargs, dynamic_axes=axes, verify=True)
    assert all(value is held[key] and torch.equal(value, numbers[key]) for key, value in _tensors(cache).items())
    assert set(result.report.input_names) == {"input_ids", *held}
    assert not result.report.warnings
    for length in (3, 8):
        other = _cache(model, length if form == "dynamic" else 4, make())
        feeds = {"input_ids": TOKEN, **_tensors(other)}
        for engine in ENGINES:
            found, own = _ran(result, engine, feeds), copy.deepcopy(other)
            with torch.no_grad():
                want = model(TOKEN, past_key_values=own, use_cache=True)
            np.testing.assert_allclose(found["logits"], want.logits, rtol=1e-4, atol=1e-5)
            for key, value in _tensors(own).items():
                np.testing.assert_allclose(found[f"{key}.next"], value, rtol=1e-4, atol=1e-5)


def test_an_empty_cache_gives_its_first_tensors() -> None:
    model = MODELS["llama"]().eval()
    kwargs = {"input_ids": torch.arange(4)[None], "past_key_values": T.DynamicCache(), "use_cache": True}
    result = fx2onnx.export(model, (), kwargs=kwargs)
    assert result.report.input_names == ["input_ids"]
    assert result.report.output_names[1:3] == ["past_key_values.0.key.next", "past_key_values.0.value.next"]
    assert not kwargs["past_key_values"].layers


@pytest.mark.long
def test_an_encoder_decoder_cache_is_inputs_and_outputs() -> None:
    config = T.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=50, decoder_start_token_id=0)
    model = T.T5ForConditionalGeneration(config).eval()
    encoded = T.modeling_outputs.BaseModelOutput(last_hidden_state=torch.randn(1, 6, 16))
    with torch.no_grad():
        cache = model(encoder_outputs=encoded, decoder_input_ids=TOKEN, use_cache=True).past_key_values
    kwargs = {"encoder_outputs": encoded, "decoder_input_ids": TOKEN, "past_key_values": cache, "use_cache": True}
    result = fx2onnx.export(model, (), kwargs=kwargs, verify=True)
    assert "past_key_values.0.encoder.key" in result.report.input_names
    assert result.report.output_names[-2:] == [
        "past_key_values.0.decoder.key.next",
        "past_key_values.0.decoder.value.next",
    ]


class PutsIntoContainers(nn.Module):
    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, x: torch.Tensor, given: Any) -> Any:
        if isinstance(given, list):
            given.append(given[0] + x)
        else:
            given["h"] = given["h"] + x
        return (x * 2, given) if self.returns else x * 2


@pytest.mark.parametrize(("given", "name"), [([torch.ones(3)], "given[1]"), ({"h": torch.ones(3)}, "given['h']")])
def test_what_is_put_into_a_list_or_dict_is_an_output_or_said(given: Any, name: str) -> None:
    args, before = (torch.randn(3), given), copy.copy(given)
    said = fx2onnx.export(PutsIntoContainers(False), args).report.warnings
    assert [line.partition("   ")[0] for line in said] == [f"forward changes the argument {name}"]
    with pytest.raises(fx2onnx.UserError, match="E106") as caught:
        fx2onnx.export(PutsIntoContainers(False), args, state="error")
    assert name in caught.value.what
    result = fx2onnx.export(PutsIntoContainers(True), args, state="error", verify=True)
    assert not result.report.warnings
    assert len(given) == len(before)
    assert all(
        now is old
        for now, old in zip(
            *(list(each.values() if isinstance(each, dict) else each) for each in (given, before)), strict=True
        )
    )
