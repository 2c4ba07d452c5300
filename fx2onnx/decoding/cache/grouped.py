"""Decoders whose attention is one operator over the whole cache (onnxruntime's GroupQueryAttention).

While the model is captured, its attention function is one operator of ours, its caches give on what is new, and rotary
embeddings are an operator over tables; in eager PyTorch it is what it was, so that a file is compared with the model itself.
A model fits where it asks transformers for its attention function and its masks, and keeps keys and values of all tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout, unmistakable_sizes
from fx2onnx.decoding.cache.rotary import (
    CACHED_ATTENTION,
    ROTARY,
    Angles,
    RotaryCalls,
    forward_of,
    is_rotary,
    probing_form,
    probing_tables,
    rotary_libraries,
    turning,
)
from fx2onnx.decoding.cache.static import checked_layers
from fx2onnx.decoding.decoder import HiddenOf, asking_for, outputs_of, prompt_of, text_inputs, trial
from fx2onnx.manifest.names import BATCH, PAST, PAST_SIZE, POSITIONS
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.source import Options, Source

NAME = "fx2onnx_cached"
"""The name of the attention function among those of transformers."""
PAST_SAMPLE = 6
LOOSE = 1e-2
"""The largest difference that another order of operations may make; a verification has smaller tolerances."""
HARMLESS = frozenset({"dropout", "is_causal", "position_ids", "cache_position", "layer_type"})
"""Keywords of attention functions that change nothing of a cached step without dropout; nor do flags."""


def unfit(model: Model, why: str) -> UserError:
    return UserError("E601", f"the attention of {type(model).__name__} is no single operator", why=why)


@dataclass(eq=False)
class Masked:
    """Stands for a mask: causal, of the last ``window`` keys where that is above 0."""

    window: int


@dataclass(eq=False)
class ModelCall:
    """One call of the model: what its functions find."""

    layers: list[Any]
    mask: torch.Tensor
    positions: torch.Tensor | None


class GroupedDecoder(torch.nn.Module):
    """``model`` with keys and values of all tokens as inputs and outputs."""

    def __init__(self, model: Model, cache_argument: str, layers: int, hidden_of: HiddenOf | None) -> None:
        super().__init__()
        self.samples: list[dict[str, torch.Tensor]] = []
        """Inputs that the file is compared with the model on."""
        self.model, self._hidden_of = model, hidden_of
        self._cache_argument = cache_argument
        self._layers = layers
        self._seen: RotaryCalls | None = None
        self._tables: dict[tuple[int, tuple[Any, ...]], tuple[str, str]] = {}

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        from transformers.cache_utils import Cache

        names = [f"{layer}.{part}" for layer in range(self._layers) for part in ("key", "value")]
        tensors = [inputs[PAST + name] for name in names]
        kind = _given_layer if self._seen is not None else _plain_layer
        if self._seen is None:
            _check_call(inputs["input_ids"], tensors[0])
        layers = [kind(key, value) for key, value in zip(tensors[::2], tensors[1::2], strict=True)]
        plain = {name: value for name, value in inputs.items() if not name.startswith(PAST)}
        call = ModelCall(layers, plain["attention_mask"], plain.get(POSITIONS))
        with self._replaced(call) if self._seen is not None else contextlib.nullcontext():
            asked = asking_for(self._hidden_of) | {self._cache_argument: Cache(layers=layers)}
            result = self.model(**plain, **asked, use_cache=True)
        written = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return outputs_of(result, dict(zip(names, written, strict=True)), self._hidden_of)

    @contextlib.contextmanager
    def as_file(self) -> Iterator[None]:
        """Replace the operators in a capture within the block. Raises: UserError E601 where the model does not fit."""
        seen = self._probed()
        self._keep_tables(seen)
        self._seen = seen
        try:
            yield
        finally:
            self._seen = None

    def _keep_tables(self, seen: RotaryCalls) -> None:
        for number, (key, tables) in enumerate(seen.tables.items()):
            names = f"cos_cache_{number}" if number else "cos_cache", f"sin_cache_{number}" if number else "sin_cache"
            for name, table in zip(names, tables, strict=True):
                self.register_buffer(name, table, persistent=False)
            self._tables[key] = names

    def _probed(self) -> RotaryCalls:
        """The rotary calls that a short prompt on the model itself shows."""
        seen, ids = RotaryCalls(), torch.zeros(1, 3, dtype=torch.int64)
        masks = _masks(lambda masked: seen.windows.append(masked.window))
        with _implementation(self.model, _eager_like, masks), contextlib.ExitStack() as stack:
            for module in self.model.modules():
                if is_rotary(module):
                    stack.enter_context(forward_of(module, probing_tables(self.model, module, seen)))
            for library in rotary_libraries(self.model):
                original = getattr(library, ROTARY)
                stack.enter_context(_attribute(library, ROTARY, probing_form(library.__name__, original, seen)))
            with torch.no_grad():
                self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
        return seen

    @contextlib.contextmanager
    def _replaced(self, call: ModelCall) -> Iterator[None]:
        assert self._seen is not None
        seen, windows = self._seen, iter(self._seen.windows)

        def mask(*_: Any, **__: Any) -> Masked:
            return Masked(next(windows))

        with _implementation(self.model, _attending(self.model, call), mask), contextlib.ExitStack() as stack:
            if call.positions is not None:
                for module in self.model.modules():
                    if is_rotary(module) and any(key[0] == id(module) for key in self._tables):
                        stack.enter_context(forward_of(module, self._angles_of(module)))
                for library in rotary_libraries(self.model):
                    turn = turning(call.positions, seen.forms.get(library.__name__), getattr(library, ROTARY))
                    stack.enter_context(_attribute(library, ROTARY, turn))
            yield

    def _angles_of(self, module: torch.nn.Module) -> Callable[..., Any]:
        original = module.forward

        def forward(x: torch.Tensor, position_ids: torch.Tensor, *more: Any, **named: Any) -> Any:
            names = self._tables.get((id(module), (*more, *named.values())))
            if names is None:
                return original(x, position_ids, *more, **named)
            angles = Angles(getattr(self, names[0]), getattr(self, names[1]))
            return angles, angles

        return forward


def _check_call(ids: torch.Tensor, past: torch.Tensor) -> None:
    """Raises: ValueError for a call that onnxruntime's operator does not take."""
    if ids.shape[0] > 1 and ids.shape[1] > 1 and past.shape[2] > 0:
        raise ValueError("several tokens behind a past are taken for one row at a time")


def _check_keys(model: Model, keys: torch.Tensor) -> None:
    dtype, width = keys.dtype, keys.shape[3]
    if width % 8:
        raise unfit(model, f"onnxruntime's operator is for heads of a multiple of 8, not of {width} numbers")
    if dtype not in (torch.float32, torch.float16):
        raise unfit(
            model, f"onnxruntime's operator is for float32 and float16, not for {str(dtype).removeprefix('torch.')}"
        )


def grouped_decoder(model: Model, name: str, options: Options, hidden_of: HiddenOf | None = None) -> Source:
    """``model`` as one graph over caches that keep all tokens; ``hidden_of`` as ``cached_decoder`` takes it.

    Raises: UserError E601 where it does not fit.
    """
    sizes = unmistakable_sizes(model.config)
    cache_argument, cache = trial(model, prompt_of(model, sizes))
    layers = checked_layers(model, cache)
    _check_keys(model, layers[0].keys)
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(model, CacheLayout(cache, sizes), batch, new, PAST_SAMPLE)
    if "attention_mask" not in kwargs:
        raise unfit(model, "its forward takes no attention_mask, which says how many tokens there are")
    for index, layer in layers.items():
        for part, tensor in (("key", layer.keys), ("value", layer.values)):
            state = f"{PAST}{index}.{part}"
            kwargs[state] = torch.randn(batch, tensor.shape[1], PAST_SAMPLE, tensor.shape[3]).to(tensor.dtype)
            shapes[state] = {0: BATCH, 2: PAST_SIZE}
    module = GroupedDecoder(model, cache_argument, len(layers), hidden_of).eval()
    module.samples = [_part_of(kwargs, 1, new), _part_of(kwargs, batch, 1)]
    _try_on(module, module.samples[0])
    return Source.of_part(name, module, kwargs, shapes)


def _try_on(module: GroupedDecoder, sample: Mapping[str, torch.Tensor]) -> None:
    """Raises: UserError E601 where the operators do not give what the model does."""
    model = module.model
    with torch.no_grad():
        wanted = module(**sample)["logits"]
        try:
            with module.as_file():
                found = module(**sample)["logits"]
        except UserError:
            raise
        except Exception as cause:  # a model's own code, which meets masks and angles that are no tensors
            raise unfit(model, "it looks into its masks or rotary embeddings") from cause
    if not found.is_meta and not torch.allclose(found, wanted, rtol=LOOSE, atol=LOOSE * float(wanted.abs().max())):
        raise unfit(model, "with the operator for it, the model gives other numbers")


def _part_of(kwargs: Mapping[str, torch.Tensor], batch: int, new: int) -> dict[str, torch.Tensor]:
    """The first rows, and so many tokens behind the past."""
    ends = {"attention_mask": PAST_SAMPLE + new}
    part = {name: value[:batch] for name, value in kwargs.items()}
    return {
        name: value if name.startswith(PAST) else value[:, : ends.get(name, new)].contiguous()
        for name, value in part.items()
    }


def _layer(key: torch.Tensor, value: torch.Tensor, update: Callable[..., Any]) -> Any:
    """A layer of transformers that holds these tensors; windows are left to the mask."""
    from transformers.cache_utils import StaticLayer

    class Layer(StaticLayer):  # type: ignore[misc]
        is_compileable = False

        def __init__(self) -> None:
            self.keys, self.values = self.past_keys, self.past_values = key, value
            self.is_initialized = True
            self.dtype, self.device = key.dtype, key.device

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object) -> Any:
            return update(self, key_states, value_states)

        def get_seq_length(self) -> int:
            return self.past_keys.shape[-2]

        def get_query_offset(self) -> int:
            return self.past_keys.shape[-2]

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.past_keys.shape[-2] + query_length, 0

        def get_max_length(self) -> int:
            return -1

    return Layer()


def _plain_layer(key: torch.Tensor, value: torch.Tensor) -> Any:
    def update(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer.keys, layer.values = torch.cat([key, keys], dim=-2), torch.cat([value, values], dim=-2)
        return layer.keys, layer.values

    return _layer(key, value, update)


def _given_layer(key: torch.Tensor, value: torch.Tensor) -> Any:
    """One that gives on what is new: attention puts it behind the rest."""

    def update(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer.keys, layer.values = keys, values
        return keys, values

    return _layer(key, value, update)


def _attending(model: Model, call: ModelCall) -> Callable[..., Any]:
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        layer = call.layers[module.layer_idx]  # type: ignore[index]
        strange = sorted(
            name for name, given in others.items() if not (given is None or isinstance(given, bool) or name in HARMLESS)
        )
        if layer.keys is not key or layer.values is not value:
            raise unfit(model, "a layer attends to the keys of another")
        if not isinstance(attention_mask, Masked) or strange:
            raise unfit(model, f"its attention takes {', '.join(strange) or 'a mask of its own'}")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        out, layer.keys, layer.values = CACHED_ATTENTION(
            *(query, key, value, layer.past_keys, layer.past_values, call.mask, s_aux),
            *(scale, float(softcap or 0), attention_mask.window),
        )
        return out.transpose(1, 2), None

    return attend


def _eager_like(module: torch.nn.Module, query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """Something of the right shape: of the probe's numbers nobody asks."""
    return query.transpose(1, 2), None


def _masks(note: Callable[[Masked], object]) -> Callable[..., Masked]:
    def mask(*_: Any, mask_function: Callable[..., Any], local_size: int | None = None, **__: Any) -> Masked:
        window = -1 if local_size is None else int(local_size)
        rows = torch.tensor(
            sorted({row for near in (0, 1, 2, 40, 3 * window) for row in (near, near + 1, window + near)})
        )
        rows = rows[rows >= 0].reshape(-1, 1)
        columns = torch.cat([rows + shift for shift in (0, 1, -1, -window, 1 - window, -1 - window)]).reshape(1, -1)
        columns = columns[:, columns[0] >= 0]
        zero = torch.zeros((), dtype=torch.int64)
        allowed = mask_function(zero, zero, rows, columns)
        expected = columns <= rows
        if window > 0:
            expected &= columns > rows - window
        if not bool((allowed == expected).all()):
            raise UserError("E601", "a mask is neither causal nor of the last keys")
        masked = Masked(window)
        note(masked)
        return masked

    return mask


@contextlib.contextmanager
def _implementation(model: Model, attention: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[None]:
    """The model with other functions for attention and masks."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    configs = {id(config): config for part in model.modules() if (config := getattr(part, "config", None)) is not None}
    with contextlib.ExitStack() as stack:
        for config in configs.values():
            if hasattr(config, "_attn_implementation_internal"):
                stack.enter_context(_attribute(config, "_attn_implementation_internal", NAME))
        for table, function in ((ALL_ATTENTION_FUNCTIONS, attention), (ALL_MASK_ATTENTION_FUNCTIONS, mask)):
            stack.callback(table._global_mapping.pop, NAME, None)
            table._global_mapping[NAME] = function
        yield


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
