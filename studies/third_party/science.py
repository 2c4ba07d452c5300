"""Rows of packages for graphs, geometry, densities, differential equations and policies."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from studies.third_party.spec import Applied, Row, apply, at, call, first, row, tensors, trained

# fmt: off

_GRAPH = ("nodes 8", "int6 2 edges")


def _layer(name: str, *args: object, inputs: tuple[str, ...] = _GRAPH, **options: object) -> Row:
    return row("torch_geometric", name, call(f"torch_geometric.nn.{name}", *args, **options), *inputs)


def _pooling(name: str, *args: object) -> Row:
    def build() -> torch.nn.Module:
        return Applied(lambda x, group: at(f"torch_geometric.nn.{name}")(x, group, 3, *args))

    return row("torch_geometric", name, build, "nodes 8", "int3 nodes")


def _aggregation(name: str, **options: object) -> Row:
    def build() -> torch.nn.Module:
        network = at(f"torch_geometric.nn.{name}")(**options)
        return Applied(lambda x, group: network(x, group.sort()[0], dim_size=3), network)

    return row("torch_geometric", name, build, "nodes 8", "int3 nodes")


GRAPHS = [
    _layer("GCNConv", 8, 4),
    _layer("GATConv", 8, 4, heads=2),
    _layer("GATv2Conv", 8, 4, heads=2),
    _layer("SAGEConv", 8, 4),
    _layer("GraphConv", 8, 4),
    _layer("ChebConv", 8, 4, K=2),
    _layer("TAGConv", 8, 4),
    _layer("ARMAConv", 8, 4),
    _layer("SGConv", 8, 4, K=2),
    _layer("APPNP", 2, 0.1),
    _layer("TransformerConv", 8, 4, heads=2),
    _layer("ResGatedGraphConv", 8, 4),
    _layer("GatedGraphConv", 8, 2),
    _layer("LEConv", 8, 4),
    _layer("ClusterGCNConv", 8, 4),
    _layer("SuperGATConv", 8, 4, heads=2),
    _layer("FeaStConv", 8, 4, heads=2),
    _layer("FiLMConv", 8, 4),
    _layer("EGConv", 8, 4, num_heads=2, num_bases=2),
    _layer("GENConv", 8, 4),
    _layer("LGConv"),
    _layer("FAConv", 8, inputs=("nodes 8", "nodes 8", "int6 2 edges")),
    _layer("MFConv", 8, 4, max_degree=3),
    _layer("SSGConv", 8, 4, 0.1, K=2),
    _layer("AntiSymmetricConv", 8),
    _layer("PDNConv", 8, 4, edge_dim=3, hidden_channels=4, inputs=(*_GRAPH, "edges 3")),
    _layer("NNConv", 8, 4, nn=torch.nn.Linear(3, 32), inputs=(*_GRAPH, "edges 3")),
    _layer("GINEConv", nn=torch.nn.Linear(8, 4), edge_dim=3, inputs=(*_GRAPH, "edges 3")),
    _layer("CGConv", 8, 3, inputs=(*_GRAPH, "edges 3")),
    _layer("GINConv", nn=torch.nn.Linear(8, 4)),
    _layer("EdgeConv", nn=torch.nn.Linear(16, 4)),
    _layer("PNAConv", 8, 4, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=torch.tensor([1, 3, 2])),
    _layer("RGCNConv", 8, 4, 3, inputs=(*_GRAPH, "int3 edges")),
    _layer("RGATConv", 8, 4, 3, inputs=(*_GRAPH, "int3 edges")),
    _layer("GCN", 8, 8, 2, 4),
    _layer("GraphSAGE", 8, 8, 2, 4),
    _layer("GAT", 8, 8, 2, 4),
    _layer("GIN", 8, 8, 2, 4),
    _layer("BatchNorm", 8, inputs=("nodes 8",)),
    _layer("GraphNorm", 8, inputs=("nodes 8",)),
    _layer("PairNorm", inputs=("nodes 8",)),
    _layer("MessageNorm", True, inputs=("nodes 8", "nodes 8")),
    _layer("InnerProductDecoder", inputs=_GRAPH),
    *(_pooling(name) for name in ("global_add_pool", "global_mean_pool", "global_max_pool")),
    _aggregation("SumAggregation"),
    _aggregation("MeanAggregation"),
    _aggregation("MaxAggregation"),
    _aggregation("SoftmaxAggregation", learn=True),
    _aggregation("PowerMeanAggregation"),
    _aggregation("VarAggregation"),
    _aggregation("StdAggregation"),
    _aggregation("SortAggregation", k=2),
    _aggregation("LSTMAggregation", in_channels=8, out_channels=4),
    _aggregation("QuantileAggregation", q=0.5),
    _aggregation("Set2Set", in_channels=8, processing_steps=2),
    row("torch_geometric", "SchNet interactions", lambda: at("torch_geometric.nn.models.schnet.CFConv")(8, 8, 8, torch.nn.Sequential(torch.nn.Linear(5, 8)), 5.0), "nodes 8", "int6 2 edges", "unit edges", "edges 5"),
    row("torch_geometric", "softmax", lambda: Applied(lambda x, group: at("torch_geometric.utils.softmax")(x, group, num_nodes=3)), "nodes 8", "int3 nodes"),
    row("torch_geometric", "scatter", lambda: Applied(lambda x, group: at("torch_geometric.utils.scatter")(x, group, 0, 3, reduce="mean")), "nodes 8", "int3 nodes"),
    row("egnn_pytorch", "EGNN", call("egnn_pytorch.EGNN", dim=16, then=first), "batch length 16", "batch length 3"),
    row("egnn_pytorch", "EGNN, nearest", call("egnn_pytorch.EGNN", dim=16, num_nearest_neighbors=3, then=first), "batch length 16", "batch length 3"),
    row("egnn_pytorch", "EGNN_Network", call("egnn_pytorch.EGNN_Network", num_tokens=20, dim=16, depth=1, num_nearest_neighbors=3, then=first), "int20 batch length", "batch length 3"),
    row("invariant_point_attention", "IPABlock", lambda: _frames(), "batch length 16", "batch length length 16", "batch length 3 3", "batch length 3"),
    row("e3nn", "Linear", lambda: at("e3nn.o3.Linear")("4x0e+2x1o", "2x0e+1x1o"), "rows 10"),
    row("e3nn", "FullyConnectedTensorProduct", lambda: at("e3nn.o3.FullyConnectedTensorProduct")("4x0e+2x1o", "1x0e+1x1o", "2x0e+1x1o"), "rows 10", "rows 4"),
    row("e3nn", "SphericalHarmonics", lambda: at("e3nn.o3.SphericalHarmonics")([0, 1, 2], normalize=True), "rows 3"),
    row("e3nn", "Gate", lambda: at("e3nn.nn.Gate")("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"), "rows 12"),
    row("e3nn", "FullyConnectedNet", lambda: at("e3nn.nn.FullyConnectedNet")([3, 8, 4], torch.nn.functional.silu), "rows 3"),
    row("se3_transformer_pytorch", "SE3Transformer", lambda: Applied(_se3(), None), "batch 8 8", "batch 8 3"),
]


def _frames() -> torch.nn.Module:
    network = at("invariant_point_attention.IPABlock")(dim=16, heads=2).eval()
    return Applied(lambda x, pair, turn, shift: network(x, pairwise_repr=pair, rotations=turn, translations=shift), network)


def _se3() -> object:
    network = at("se3_transformer_pytorch.SE3Transformer")(dim=8, heads=2, depth=1, dim_head=4, num_degrees=2, num_neighbors=3).eval()
    return lambda x, place: network(x, place, return_type=0)


def _solver(package: str, function: str, **options: object) -> Row:
    def build() -> torch.nn.Module:
        field = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        return Applied(lambda x: at(f"{package}.{function}")(lambda t, y: field(y), x, torch.linspace(0, 1, 5), **options), field)

    return row(package, f"{function}, {options['method']}", build, "batch 2")


def _kernel(name: str, **options: object) -> Row:
    def build() -> torch.nn.Module:
        kernel = at(f"gpytorch.kernels.{name}")(**options)
        return Applied(lambda x: at("gpytorch.kernels.ScaleKernel")(kernel)(x).to_dense(), kernel)

    return row("gpytorch", name, build, "rows 3")


def _gaussian_process() -> torch.nn.Module:
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    likelihood = at("gpytorch.likelihoods.GaussianLikelihood")()

    class Process(at("gpytorch.models.ExactGP")):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, x.sum(1), likelihood)
            self.mean = at("gpytorch.means.ConstantMean")()
            self.kernel = at("gpytorch.kernels.ScaleKernel")(at("gpytorch.kernels.RBFKernel")())

        def forward(self, at_points: torch.Tensor) -> object:
            return at("gpytorch.distributions.MultivariateNormal")(self.mean(at_points), self.kernel(at_points))

    process = Process().eval()
    return Applied(lambda points: [getattr(process(points), name) for name in ("mean", "variance")], process)


def _density(name: str, *args: object, **options: object) -> Row:
    def build() -> torch.nn.Module:
        flow = at(f"zuko.flows.{name}")(3, 2, *args, **options)
        return Applied(lambda x, context: flow(context).log_prob(x), flow)

    return row("zuko", name, build, "batch 3", "batch 2")


def _flow(name: str, **options: object) -> Row:
    return row("nflows", name.rpartition(".")[2], call(f"nflows.transforms.{name}", **options, then=first), "batch 4")


def _policy(name: str, algorithm: str, box: bool, **options: object) -> Row:
    def build() -> torch.nn.Module:
        spaces = at("gymnasium.spaces")
        see = spaces.Box(-1, 1, (4,))
        act = spaces.Box(-1, 1, (2,)) if box else spaces.Discrete(3)
        policy = at(f"stable_baselines3.{algorithm}.policies.{name}")(see, act, lambda _: 1e-3, **options).eval()
        return Applied(lambda x: tensors(policy(x, deterministic=True)), policy)

    return row("stable_baselines3", f"{algorithm} {name}{', box' if box else ''}", build, "batch 4")


def _fixed_steps() -> torch.nn.Module:
    field = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def solved(y: torch.Tensor) -> object:
        times = torch.linspace(0, 1, 4)
        return at("torchode.solve_ivp")(lambda t, y: field(y), y, times, method="heun", controller=at("torchode.FixedStepController")(), dt0=torch.full((y.shape[0],), 0.1)).ys

    return Applied(solved, field)


PHYSICS = [
    *(_solver("torchdiffeq", "odeint", method=name) for name in ("euler", "midpoint", "rk4", "explicit_adams", "implicit_adams", "heun3")),
    row("torchdiffeq", "odeint, dopri5", lambda: Applied(lambda x: at("torchdiffeq.odeint")(lambda t, y: -y, x, torch.linspace(0, 1, 3), method="dopri5")), "batch 2"),
    *(row("torchode", f"solve_ivp, {method}", lambda method=method: Applied(lambda y: at("torchode.solve_ivp")(lambda t, y: -y, y, torch.linspace(0, 1, 4), method=method).ys), "batch 2") for method in ("dopri5", "tsit5")),
    row("torchode", "solve_ivp, heun in fixed steps", _fixed_steps, "batch 2"),
    row("torchcde", "natural cubic spline", apply("torchcde.natural_cubic_coeffs"), "batch 8 3"),
    row("torchcde", "hermite cubic spline", apply("torchcde.hermite_cubic_coefficients_with_backward_differences"), "batch 8 3"),
    row("torchcde", "linear interpolation", apply("torchcde.linear_interpolation_coeffs"), "batch 8 3"),
    *(_kernel(name) for name in ("RBFKernel", "MaternKernel", "LinearKernel", "CosineKernel", "PeriodicKernel", "RQKernel")),
    _kernel("PolynomialKernel", power=2),
    row("gpytorch", "ExactGP", _gaussian_process, "rows 2"),
    row("pyro", "AutoRegressiveNN", call("pyro.nn.AutoRegressiveNN", 4, [8]), "batch 4"),
    row("pyro", "DenseNN", call("pyro.nn.DenseNN", 4, [8], [2, 3], then=first), "batch 4"),
    row("pyro", "spline coupling", call("pyro.distributions.transforms.spline_coupling", 4, hidden_dims=[8], count_bins=4, then=lambda flow: Applied(flow, flow)), "batch 4"),
    _density("MAF", transforms=2, hidden_features=(8,)),
    _density("NSF", transforms=2, hidden_features=(8,), bins=4),
    _density("NICE", transforms=2, hidden_features=(8,)),
    _density("GMM", components=3, hidden_features=(8,)),
    _density("NAF", transforms=1, hidden_features=(8,), network={"hidden_features": (8,)}),
    _density("SOSPF", transforms=1, hidden_features=(8,)),
    _density("BPF", transforms=1, hidden_features=(8,)),
    _density("GF", transforms=1, hidden_features=(8,)),
    _flow("autoregressive.MaskedAffineAutoregressiveTransform", features=4, hidden_features=8),
    _flow("autoregressive.MaskedPiecewiseRationalQuadraticAutoregressiveTransform", features=4, hidden_features=8, num_bins=4, tails="linear", tail_bound=3.0),
    _flow("lu.LULinear", features=4),
    _flow("normalization.ActNorm", features=4),
    _flow("permutations.ReversePermutation", features=4),
    row("normflows", "Planar", lambda: first(at("normflows.flows.Planar")((4,))), "batch 4"),
    row("normflows", "Radial", lambda: first(at("normflows.flows.Radial")((4,))), "batch 4"),
    row("normflows", "MaskedAffineFlow", lambda: first(at("normflows.flows.MaskedAffineFlow")(torch.tensor([1.0, 0, 1, 0]), at("normflows.nets.MLP")([4, 8, 4]), at("normflows.nets.MLP")([4, 8, 4]))), "batch 4"),
    row("normflows", "AutoregressiveRationalQuadraticSpline", lambda: first(at("normflows.flows.AutoregressiveRationalQuadraticSpline")(4, 1, 8)), "batch 4"),
    _policy("MlpPolicy", "ppo", False),
    _policy("MlpPolicy", "ppo", True),
    _policy("MlpPolicy", "a2c", True),
    _policy("MlpPolicy", "dqn", False),
    row("stable_baselines3", "sac Actor", lambda: _actor("sac"), "batch 4"),
    row("stable_baselines3", "td3 Actor", lambda: _actor("td3"), "batch 4"),
    row("stable_baselines3", "NatureCNN", lambda: at("stable_baselines3.common.torch_layers.NatureCNN")(at("gymnasium.spaces.Box")(0, 255, (3, 64, 64), "uint8"), 16), "unit batch 3 64 64"),
    row("torchrl", "MLP", call("torchrl.modules.MLP", in_features=4, out_features=2, num_cells=[8]), "batch 4"),
    row("torchrl", "ConvNet", call("torchrl.modules.ConvNet", in_features=3, num_cells=[4, 4], kernel_sizes=3), "batch 3 32 32"),
    trained(row("torchrl", "DuelingCnnDQNet", call("torchrl.modules.DuelingCnnDQNet", out_features=3, cnn_kwargs={"in_features": 3, "depth": 1, "num_cells": [4], "kernel_sizes": 3, "strides": 1}, mlp_kwargs={"depth": 1, "num_cells": [8]}), "batch 3 16 16")),
    row("torchrl", "DecisionTransformer", lambda: _decisions(), "batch length 3", "batch length 2", "batch length 1"),
    row("torchrl", "DTActor noisy linear", call("torchrl.modules.NoisyLinear", 4, 2), "batch 4"),
    row("botorch", "SingleTaskGP", lambda: _surrogate(), "rows 2"),
    row("lerobot", "SmolVLA", lambda: _smolvla(), "batch 3 32 32", "int20 batch length", "batch 8", "batch 4 8"),
    row("lerobot", "ACT sinusoidal positions", lambda: first(_policy_code("act.modeling_act").ACTSinusoidalPositionEmbedding2d(8)), "batch 3 height width"),
]


def _actor(algorithm: str) -> torch.nn.Module:
    spaces = at("gymnasium.spaces")
    see, act = spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2,))
    policy = at(f"stable_baselines3.{algorithm}.policies.MlpPolicy")(see, act, lambda _: 1e-3)
    return first(policy.actor, deterministic=True) if algorithm == "sac" else policy.actor


def _policy_code(name: str) -> Any:
    """A file of lerobot's policies, without the other ones, some of which need other packages."""
    rest = ModuleType("lerobot.policies")
    rest.__path__ = [str(Path(at("lerobot").__file__).with_name("policies"))]
    sys.modules.setdefault(rest.__name__, rest)
    return importlib.import_module(f"lerobot.policies.{name}")


def _smolvla() -> torch.nn.Module:
    """A small SmolVLA: attention over an image, words and a state, then two steps of denoising by its expert."""
    config, expert = at("transformers.SmolVLMConfig"), _policy_code("smolvla.smolvlm_with_expert")
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**layers, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 32, "pad_token_id": 0, "model_type": "llama"}
    made = config(vision_config={**layers, "image_size": 32, "patch_size": 8}, text_config=text, scale_factor=2, image_token_id=31)
    special = SimpleNamespace(fake_image_token_id=30, global_image_token_id=29)
    given = {"AutoConfig": made, "AutoProcessor": SimpleNamespace(tokenizer=special)}
    for name, value in given.items():
        setattr(expert, name, SimpleNamespace(from_pretrained=lambda _, value=value: value))
    package = _policy_code("smolvla.modeling_smolvla")
    options = {"chunk_size": 4, "n_action_steps": 4, "max_state_dim": 8, "max_action_dim": 8, "num_steps": 2, "num_vlm_layers": 2}
    net = package.VLAFlowMatching(package.SmolVLAConfig(**options, load_vlm_weights=False, device="cpu")).float()

    def acted(image: torch.Tensor, words: torch.Tensor, state: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        seen = torch.ones_like(state[:, 0], dtype=torch.bool)
        actions: torch.Tensor = net.sample_actions([image], [seen], words, words > 0, state, noise=noise)
        return actions

    return Applied(acted, net)


def _decisions() -> torch.nn.Module:
    return at("torchrl.modules.DecisionTransformer")(3, 2, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": 16, "n_positions": 64, "activation": "relu", "resid_pdrop": 0.1, "attn_pdrop": 0.1})


def _surrogate() -> torch.nn.Module:
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = at("botorch.models.SingleTaskGP")(x, x.sum(1, keepdim=True)).eval()
    return Applied(lambda points: [getattr(model.posterior(points.double()), name) for name in ("mean", "variance")], model)


ROWS = [*GRAPHS, *PHYSICS]
