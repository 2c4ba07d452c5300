"""Rows of packages for sound, time series, spiking and recurrent networks."""

from __future__ import annotations

import torch

from studies.third_party.spec import Applied, Row, apply, at, call, first, row, tensors, trained

# fmt: off

_WAVE = ("batch samples",)
_MONO = ("batch 1 samples",)


def _audio(name: str, *inputs: str, **options: object) -> Row:
    return row("torchaudio", name, call(f"torchaudio.{name}", **options, then=first), *(inputs or _WAVE))


AUDIO = [
    _audio("transforms.Spectrogram", n_fft=64),
    _audio("transforms.MelSpectrogram", n_fft=128, n_mels=8),
    _audio("transforms.MFCC", n_mfcc=5, melkwargs={"n_fft": 128, "n_mels": 8}),
    _audio("transforms.LFCC", n_lfcc=5, speckwargs={"n_fft": 64}),
    _audio("transforms.AmplitudeToDB", "unit batch frames 8"),
    _audio("transforms.Resample", orig_freq=16000, new_freq=8000),
    _audio("transforms.MuLawEncoding"),
    _audio("transforms.ComputeDeltas", "batch 8 frames"),
    _audio("transforms.SpectralCentroid", sample_rate=16000, n_fft=64),
    _audio("transforms.Vol", gain=0.5),
    _audio("transforms.Fade", fade_in_len=10, fade_out_len=10),
    _audio("transforms.Preemphasis"),
    _audio("transforms.SlidingWindowCmn", "batch frames 8", cmn_window=7),
    row("torchaudio", "functional.lowpass_biquad", apply("torchaudio.functional.lowpass_biquad", 16000, 3000.0), *_WAVE),
    row("torchaudio", "functional.fftconvolve", apply("torchaudio.functional.fftconvolve"), *_WAVE, "batch 9"),
    row("torchaudio", "functional.detect_pitch_frequency", apply("torchaudio.functional.detect_pitch_frequency", 16000), *_WAVE),
    row("torchaudio", "ConvTasNet", call("torchaudio.models.ConvTasNet", num_sources=2, enc_num_feats=8, msk_num_feats=8, msk_num_hidden_feats=8, msk_num_layers=2, msk_num_stacks=1), *_MONO),
    row("torchaudio", "Wav2Letter", call("torchaudio.models.Wav2Letter", num_classes=5, num_features=8), "batch 8 samples"),
    row("torchaudio", "Conformer", lambda: _conformer(), "batch 12 16", "int12 batch"),
    row("torchaudio", "HDemucs", call("torchaudio.models.HDemucs", sources=["a", "b"], audio_channels=1, channels=4, depth=4, nfft=512), *_MONO),
    row("torchaudio", "WaveRNN", call("torchaudio.models.WaveRNN", upsample_scales=[2, 2, 4], n_classes=8, hop_length=16, n_res_block=1, n_rnn=8, n_fc=8, kernel_size=5, n_freq=8, n_hidden=8, n_output=8), "1 1 128", "1 1 8 12"),
    row("torchaudio", "Tacotron2 encoder", call("torchaudio.models.tacotron2._Encoder", encoder_embedding_dim=16, encoder_n_convolution=1, encoder_kernel_size=5, then=lambda net: Applied(lambda x: net(x, torch.full((2,), 12)), net)), "2 16 12"),
    row("encodec", "24 kHz", lambda: at("encodec.model.EncodecModel._get_model")([1.5], sample_rate=24000, channels=1, causal=True, model_norm="weight_norm", audio_normalize=False), *_MONO),
    row("encodec", "SEANetEncoder", call("encodec.modules.SEANetEncoder", channels=1, dimension=8, n_filters=4, ratios=[4, 2], lstm=1), *_MONO),
    row("encodec", "SEANetDecoder", call("encodec.modules.SEANetDecoder", channels=1, dimension=8, n_filters=4, ratios=[4, 2], lstm=1), "batch 8 frames"),
    row("snac", "SNAC encoder", lambda: at("snac.layers.Encoder")(d_model=8, strides=[2, 4], depthwise=True, attn_window_size=None), *_MONO),
    row("snac", "SNAC", lambda: first(at("snac.SNAC")(sampling_rate=24000, encoder_dim=8, encoder_rates=[2, 4], decoder_dim=32, decoder_rates=[4, 2], attn_window_size=None, codebook_size=16, codebook_dim=4, vq_strides=[2, 1], noise=False, depthwise=True)), *_MONO),
    row("dac", "DAC", lambda: first(at("dac.model.dac.DAC")(encoder_dim=8, encoder_rates=[2, 4], decoder_dim=32, decoder_rates=[4, 2], n_codebooks=2, codebook_size=16, codebook_dim=4)), *_MONO),
    row("dac", "Encoder", call("dac.model.dac.Encoder", d_model=8, strides=[2, 4], d_latent=16), *_MONO),
    row("dac", "Decoder", call("dac.model.dac.Decoder", 16, 32, [4, 2]), "batch 16 frames"),
    row("vocos", "VocosBackbone", call("vocos.models.VocosBackbone", input_channels=8, dim=16, intermediate_dim=32, num_layers=2), "batch 8 frames"),
    row("vocos", "ISTFTHead", call("vocos.heads.ISTFTHead", dim=16, n_fft=32, hop_length=8), "batch frames 16"),
    row("vocos", "MelSpectrogramFeatures", call("vocos.feature_extractors.MelSpectrogramFeatures", n_fft=128, hop_length=32, n_mels=8), *_WAVE),
    row("asteroid", "ConvTasNet", call("asteroid.models.ConvTasNet", n_src=2, n_filters=8, kernel_size=16, n_blocks=2, n_repeats=1, bn_chan=8, hid_chan=8, skip_chan=8), *_WAVE),
    row("asteroid", "DPRNNTasNet", call("asteroid.models.DPRNNTasNet", n_src=2, n_filters=8, kernel_size=16, bn_chan=8, hid_size=8, chunk_size=20, n_repeats=1), *_WAVE),
    row("asteroid", "DCUNet", call("asteroid.models.DCUNet", architecture="mini", fix_length_mode="pad", stft_n_filters=64, stft_kernel_size=64, stft_stride=16), *_WAVE),
    row("asteroid_filterbanks", "STFTFB encoder", lambda: at("asteroid_filterbanks.Encoder")(at("asteroid_filterbanks.STFTFB")(n_filters=32, kernel_size=32, stride=8)), *_MONO),
    row("speechbrain", "ECAPA_TDNN", call("speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN", 8, channels=[16, 16, 16, 16, 48], kernel_sizes=[5, 3, 3, 3, 1], dilations=[1, 2, 3, 4, 1], attention_channels=8, lin_neurons=8), "batch frames 8"),
    row("speechbrain", "Xvector", call("speechbrain.lobes.models.Xvector.Xvector", device="cpu", in_channels=8, tdnn_blocks=3, tdnn_channels=[16, 16, 48], tdnn_kernel_sizes=[3, 3, 1], tdnn_dilations=[1, 2, 1], lin_neurons=8), "batch frames 8"),
    row("speechbrain", "CRDNN", call("speechbrain.lobes.models.CRDNN.CRDNN", input_shape=[None, None, 8], cnn_blocks=1, cnn_channels=[4], rnn_layers=1, rnn_neurons=8, dnn_blocks=1, dnn_neurons=8), "batch frames 8"),
    row("speechbrain", "Fbank", call("speechbrain.lobes.features.Fbank", n_mels=8), *_WAVE),
    row("speechbrain", "HifiganGenerator", call("speechbrain.lobes.models.HifiGAN.HifiganGenerator", in_channels=8, out_channels=1, resblock_type="2", resblock_dilation_sizes=[[1, 3], [1, 3]], resblock_kernel_sizes=[3, 5], upsample_kernel_sizes=[4, 4], upsample_initial_channel=16, upsample_factors=[2, 2]), "batch 8 frames"),
    row("julius", "resample_frac", apply("julius.resample_frac", 4, 3), *_WAVE),
    row("julius", "lowpass_filter", apply("julius.lowpass_filter", 0.1), *_WAVE),
    row("julius", "fft_conv1d", apply("julius.fft_conv1d"), "batch 1 samples", "1 1 64"),
    row("nnAudio", "STFT", call("nnAudio.features.STFT", n_fft=64, hop_length=16, verbose=False), *_WAVE),
    row("nnAudio", "MelSpectrogram", call("nnAudio.features.MelSpectrogram", n_fft=128, n_mels=8, hop_length=32, verbose=False), *_WAVE),
    row("nnAudio", "CQT1992v2", call("nnAudio.features.CQT1992v2", sr=16000, fmin=500, n_bins=12, hop_length=64, verbose=False), *_WAVE),
    row("demucs", "Demucs", lambda: at("demucs.demucs.Demucs")(sources=["a"], audio_channels=1, channels=4, depth=2, lstm_layers=1, resample=False), *_MONO),
    row("demucs", "HTDemucs", lambda: at("demucs.htdemucs.HTDemucs")(sources=["a"], audio_channels=1, channels=8, nfft=512, depth=2, t_layers=1, t_heads=2, bottom_channels=0, segment=1, samplerate=4000, use_train_segment=False), *_MONO),
    row("openunmix", "OpenUnmix", call("openunmix.model.OpenUnmix", nb_bins=17, nb_channels=1, hidden_size=8, nb_layers=1), "unit batch 1 17 frames"),
]


def _conformer() -> torch.nn.Module:
    network = at("torchaudio.models.Conformer")(input_dim=16, num_heads=2, ffn_dim=16, num_layers=1, depthwise_conv_kernel_size=3).eval()
    return Applied(lambda x, lengths: tensors(network(x, lengths.clamp(1).index_fill(0, torch.tensor([0]), 12))), network)


def _tsai(name: str, *args: object, **options: object) -> Row:
    return row("tsai", name, call(f"tsai.models.{name}.{name}", *args, **options), "batch 3 32")


_SERIES = {"h": 4, "input_size": 16, "max_steps": 1}
_WINDOWS = ("batch 16 1",)


def _forecaster(name: str, **options: object) -> Row:
    def build() -> torch.nn.Module:
        network = at(f"neuralforecast.models.{name}")(**{**_SERIES, **options})
        return Applied(lambda y: tensors(network({"insample_y": y, "insample_mask": torch.ones_like(y), "hist_exog": None, "futr_exog": None, "stat_exog": None})), network)

    return row("neuralforecast", name, build, *_WINDOWS)


SERIES = [
    _forecaster("NBEATS", mlp_units=[[8, 8]] * 3),
    _forecaster("NHITS", mlp_units=[[8, 8]] * 3),
    _forecaster("DLinear"),
    _forecaster("NLinear"),
    _forecaster("MLP", hidden_size=8),
    _forecaster("PatchTST", hidden_size=16, n_heads=2, encoder_layers=1, patch_len=4, stride=2, linear_hidden_size=16),
    _forecaster("TiDE", hidden_size=8),
    _forecaster("TCN", encoder_hidden_size=8, decoder_hidden_size=8),
    _forecaster("LSTM", encoder_hidden_size=8, decoder_hidden_size=8),
    _forecaster("GRU", encoder_hidden_size=8, decoder_hidden_size=8),
    _forecaster("TFT", hidden_size=8, n_head=2),
    _forecaster("BiTCN", hidden_size=8),
    _forecaster("KAN", hidden_size=8),
    _forecaster("TimesNet", hidden_size=8, conv_hidden_size=8, encoder_layers=1),
    _tsai("InceptionTime", 3, 2, nf=8),
    _tsai("ResNet", 3, 2),
    _tsai("FCN", 3, 2),
    _tsai("XceptionTime", 3, 2, nf=4),
    _tsai("TST", 3, 2, 32, n_layers=1, d_model=16, n_heads=2, d_ff=16),
    _tsai("OmniScaleCNN", 3, 2, 32),
    _tsai("MLP", 3, 2, 32),
    row("tsai", "PatchTST", call("tsai.models.PatchTST.PatchTST", c_in=3, c_out=3, seq_len=32, pred_dim=8, n_layers=1, n_heads=2, d_model=16, d_ff=16, patch_len=8, stride=4), "batch 3 32"),
    row("tsai", "LSTM_FCN", call("tsai.models.RNN_FCN.LSTM_FCN", 3, 2, 32), "batch 3 32"),
    trained(row("tsai", "MiniRocketFeatures", call("tsai.models.MINIROCKET_Pytorch.MiniRocketFeatures", 3, 32, num_features=168), "batch 3 32")),
    row("gluonts", "SimpleFeedForwardModel", lambda: first(at("gluonts.torch.model.simple_feedforward.module.SimpleFeedForwardModel")(prediction_length=4, context_length=12, hidden_dimensions=[8])), "batch 12"),
    row("gluonts", "DLinearModel", lambda: first(at("gluonts.torch.model.d_linear.module.DLinearModel")(prediction_length=4, context_length=12, hidden_dimension=8)), "batch 12", "unit batch 12"),
    row("gluonts", "PatchTSTModel", lambda: first(at("gluonts.torch.model.patch_tst.module.PatchTSTModel")(prediction_length=4, context_length=16, patch_len=4, stride=4, padding_patch="end", d_model=8, nhead=2, dim_feedforward=8, dropout=0.0, activation="relu", norm_first=False, num_encoder_layers=1, num_feat_dynamic_real=0, scaling="mean")), "batch 16", "unit batch 16"),
    row("gluonts", "MeanScaler", lambda: first(at("gluonts.torch.scaler.MeanScaler")(dim=1, keepdim=True), "__call__"), "batch length", "unit batch length"),
    row("pytorch_forecasting", "GatedResidualNetwork", call("pytorch_forecasting.models.temporal_fusion_transformer.sub_modules.GatedResidualNetwork", 8, 8, 8), "batch length 8"),
    row("pytorch_forecasting", "InterpretableMultiHeadAttention", lambda: first(at("pytorch_forecasting.models.temporal_fusion_transformer.sub_modules.InterpretableMultiHeadAttention")(n_head=2, d_model=8)), *("batch length 8",) * 3),
    row("pytorch_tcn", "TCN", call("pytorch_tcn.TCN", 4, [8, 8], causal=True), "batch 4 length"),
    row("pytorch_tcn", "TCN, not causal", call("pytorch_tcn.TCN", 4, [8, 8], causal=False, use_skip_connections=True), "batch 4 length"),
]


class Spiking(torch.nn.Module):
    """A linear layer and a spiking neuron, step by step over the first axis."""

    def __init__(self, path: str, start: str, **options: object) -> None:
        super().__init__()
        self.linear, self.neuron, self.start = torch.nn.Linear(6, 4), at(path)(**options), start

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        state = getattr(self.neuron, self.start)()
        state = state if isinstance(state, tuple) else (state,)
        spikes = []
        for step in x:
            spike, *state = self.neuron(self.linear(step), *state)
            spikes.append(spike)
        return [torch.stack(spikes), *state]


SPIKING = [
    row("snntorch", "Leaky", lambda: Spiking("snntorch.Leaky", "init_leaky", beta=0.9), "steps batch 6"),
    row("snntorch", "Synaptic", lambda: Spiking("snntorch.Synaptic", "init_synaptic", alpha=0.8, beta=0.9), "steps batch 6"),
    row("snntorch", "Lapicque", lambda: Spiking("snntorch.Lapicque", "init_lapicque", beta=0.9), "steps batch 6"),
    row("snntorch", "Alpha", lambda: Spiking("snntorch.Alpha", "init_alpha", alpha=0.9, beta=0.8), "steps batch 6"),
    row("snntorch", "Leaky, six steps", lambda: Spiking("snntorch.Leaky", "init_leaky", beta=0.9), "6 batch 6"),
    row("norse", "LIFLayer", lambda: first(at("norse.torch.module.lif.LIFLayer")(6, 4)), "steps batch 6"),
    row("norse", "LIFFeedForwardLayer", lambda: first(at("norse.torch.module.lif.LIFFeedForwardLayer")()), "steps batch 6"),
    row("norse", "LIFAdExLayer", lambda: first(at("norse.torch.module.lif_adex.LIFAdExLayer")(6, 4)), "steps batch 6"),
    row("ncps", "CfC", lambda: first(at("ncps.torch.CfC")(4, 8)), "batch length 4"),
    row("ncps", "CfC, wired", lambda: first(at("ncps.torch.CfC")(4, at("ncps.wirings.AutoNCP")(12, 3))), "batch length 4"),
    *(row("sinabs", name, call(f"sinabs.layers.{name}", **options), "batch steps 6") for name, options in {"IAF": {}, "LIF": {"tau_mem": 10.0}, "ExpLeak": {"tau_mem": 10.0}, "ALIF": {"tau_mem": 10.0, "tau_adapt": 20.0}}.items()),
    row("sinabs", "LIFRecurrent", lambda: at("sinabs.layers.LIFRecurrent")(tau_mem=10.0, rec_connect=torch.nn.Linear(6, 6)), "batch steps 6"),
    row("s5", "S5", call("s5.S5", 4, 8), "batch length 4"),
    row("s5", "S5, both directions", call("s5.S5", 4, 8, bidir=True), "batch length 4"),
    row("s5", "S5Block", call("s5.S5Block", 8, 8, bidir=False), "batch length 8"),
    row("ncps", "LTC", lambda: first(at("ncps.torch.LTC")(4, 8, ode_unfolds=2)), "batch length 4"),
]
ROWS = [*AUDIO, *SERIES, *SPIKING]
