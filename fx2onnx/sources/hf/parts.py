"""Models of transformers that are called part by part: codecs of sound, and transducers (RNN-T, TDT). Each part is a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from torch import Tensor, nn

from fx2onnx.base.errors import UserError
from fx2onnx.files.folder_files import read_object
from fx2onnx.files.pipeline_index import PARTED_PREFIX, IndexEntry
from fx2onnx.files.safetensors import WeightFile
from fx2onnx.sources.diffusers.kind import PipelineFolder, PipelineModule, small_files
from fx2onnx.sources.diffusers.rows import ComponentMethod
from fx2onnx.sources.hf.config import CONFIG
from fx2onnx.sources.hf.kind import build
from fx2onnx.sources.source import Options


class Output:
    """The outputs of a part, for annotations only."""

    audio_codes: Tensor
    audio_values: Tensor
    pooler_output: Tensor
    attention_mask: Tensor


class PartConfig:
    """A config of a codec or of a transducer, for annotations only."""

    model_type: str
    audio_channels: int
    num_quantizers: int
    n_codebooks: int
    codebook_size: int
    target_bandwidths: Sequence[float]
    decoder_hidden_size: int
    num_decoder_layers: int
    num_mel_bins: int
    encoder_config: PartConfig


class Quantizer(nn.Module):
    """The quantizer of EnCodec, for annotations only."""

    get_num_quantizers_for_bandwidth: Callable[[float], int]


class Network(nn.Module):
    """The prediction network of a transducer, for annotations only."""

    embedding: nn.Embedding
    lstm: nn.LSTM
    decoder_projector: nn.Linear


class Parted(nn.Module):
    """A model of a class of ``PARTED``, for annotations only."""

    config: PartConfig
    encode: Callable[..., Output]
    decode: Callable[..., Output]
    get_audio_features: Callable[..., Output]
    decoder: Network
    joint: Callable[..., Tensor]


class Codec(nn.Module):
    """A codec of sound: ``encoder`` gives the codes of ``encode``, ``decoder`` the sound of ``decode``.

    Shapes:   input_values [B, C, samples] -> audio_codes [B, Q, frames], of EnCodec [1, B, Q, frames], and back to [B, C, samples'].
    """

    def __init__(self, model: Parted) -> None:
        super().__init__()
        self.model = model
        self.constants: dict[str, object] = {}
        config, codes = model.config, "batch {} code_frames"
        books = getattr(config, "num_quantizers", 0)
        if config.model_type == "encodec":
            codes, self.constants = f"1 {codes}", {"audio_scales": [None]}
            quantizer = cast(Quantizer, model.quantizer)
            books = quantizer.get_num_quantizers_for_bandwidth(config.target_bandwidths[0])
        elif config.model_type == "dac":
            books = config.n_codebooks
        self.calls = [
            ComponentMethod("encoder", {"input_values": f"batch {getattr(config, 'audio_channels', 1)} samples"}),
            ComponentMethod("decoder", {"audio_codes": f"int64 {codes.format(books)}"}),
        ]

    def get_input_embeddings(self) -> SimpleNamespace:
        return SimpleNamespace(num_embeddings=self.model.config.codebook_size)

    def encoder(self, input_values: Tensor) -> dict[str, Tensor]:
        return {"audio_codes": self.model.encode(input_values).audio_codes}

    def decoder(self, audio_codes: Tensor) -> dict[str, Tensor]:
        return {"audio_values": self.model.decode(audio_codes=audio_codes, **self.constants).audio_values}


class Transducer(nn.Module):
    """A recogniser of speech as ``encoder``, ``decoder`` (a step of the prediction network, with its state) and ``joiner``.

    ``joiner`` scores the next token, and behind the tokens the durations of a TDT, from one frame of ``encoder_output`` and the newest
    ``decoder_output``. After a blank the state stays as it was.

    Shapes:   input_features [B, T, mels], attention_mask [B, T] -> encoder_output [B, T', H], output_mask [B, T'];
              input_ids [B, 1], hidden, cell [L, B, H] -> decoder_output [B, 1, H], hidden.next, cell.next; joiner -> logits [B, 1, V].
    """

    def __init__(self, model: Parted) -> None:
        super().__init__()
        self.model = model
        config = model.config
        width, state = config.decoder_hidden_size, f"{config.num_decoder_layers} batch {config.decoder_hidden_size}"
        mels = config.encoder_config.num_mel_bins
        self.calls = [
            ComponentMethod("encoder", {"input_features": f"batch spectrum_frames {mels}", "attention_mask": "bool batch spectrum_frames"}),
            ComponentMethod("decoder", {"input_ids": "int64 batch 1", "hidden": state, "cell": state}),
            ComponentMethod("joiner", {"encoder_output": f"batch 1 {width}", "decoder_output": f"batch 1 {width}"}),
        ]  # fmt: skip

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.decoder.embedding

    def encoder(self, input_features: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        found = self.model.get_audio_features(input_features, attention_mask)
        return {"encoder_output": found.pooler_output, "output_mask": found.attention_mask}

    def decoder(self, input_ids: Tensor, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
        network = self.model.decoder
        found, (hidden, cell) = network.lstm(network.embedding(input_ids), (hidden, cell))
        return {"decoder_output": network.decoder_projector(found), "hidden.next": hidden, "cell.next": cell}

    def joiner(self, encoder_output: Tensor, decoder_output: Tensor) -> dict[str, Tensor]:
        return {"logits": self.model.joint(encoder_hidden_states=encoder_output, decoder_hidden_states=decoder_output)}


_PARTS: Mapping[str, Callable[[Parted], Codec | Transducer]] = {
    "EncodecModel": Codec,
    "MimiModel": Codec,
    "DacModel": Codec,
    "ParakeetForRNNT": Transducer,
    "ParakeetForTDT": Transducer,
}


class PartedFolder(PipelineFolder):
    """A checkpoint of a class of ``PARTED``: one component, each of whose parts is a graph."""

    prefix = PARTED_PREFIX

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options

    def configs_and_tokenizers(self) -> list[str]:
        return small_files(self.folder)

    def components(self) -> Sequence[PipelineModule]:
        return [self._component]

    @functools.cached_property
    def _component(self) -> PipelineModule:
        stated = read_object(self.folder / CONFIG)
        (class_name, *_) = stated["architectures"]
        if stated.get("normalize") or stated.get("chunk_length_s") is not None:
            raise UserError(
                "E601",
                f"the codec in '{self.folder}' encodes chunks, each with a scale of its own",
                why=f"its config has normalize={stated.get('normalize')} and chunk_length_s={stated.get('chunk_length_s')}",
                next="export one without, such as EnCodec's of 24 kHz",
            )
        return PartedModule(self, IndexEntry("model", "transformers", class_name))


class PartedModule(PipelineModule):
    """The model of a ``PartedFolder``."""

    @functools.cached_property
    def loaded(self) -> tuple[nn.Module, str, list[WeightFile]]:
        made = build(str(self.pipeline.folder), self.pipeline.options)
        parts = _PARTS[self.entry.class_name](cast(Parted, made.module)).eval().requires_grad_(False)
        return parts, made.origin.rpartition(", ")[2], list(made.weight_files)

    @functools.cached_property
    def calls(self) -> list[ComponentMethod]:
        parts = self.loaded[0]
        assert isinstance(parts, Codec | Transducer)
        return parts.calls

    def stem(self, call: ComponentMethod) -> str:
        return call.method

    def values(self) -> dict[str, object]:
        return {}
