"""Packages of GPU kernels that are not installed, or are and cannot run: what an import gives, and what an export takes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base.packages import GPU_PACKAGES
from fx2onnx.cli.options import resolve_source
from fx2onnx.model_patches import missing_packages, patches, patching, stand_ins
from tests.support import check, run_engines

X = torch.randn(2, 5, 2, 4)
SHAPES = {"x": {0: "batch", 1: "length"}}
FILE = """
import torch
from flash_attn import flash_attn_func

class Attention(torch.nn.Module):
    def forward(self, x):
        return flash_attn_func(x, x, x, causal=True)

def make():
    return Attention(), (torch.ones(2, 5, 2, 4),)
"""
STUB = """
def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                    deterministic=False, return_attn_probs=False):
    raise RuntimeError("CUDA")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which Python imports; what is imported from it is forgotten behind the test."""
    (tmp_path / "needs_a_kernel.py").write_text(FILE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("needs_a_kernel", "flash_attn", "acme_kernels"):
            del sys.modules[name]
    importlib.invalidate_caches()


def _expected(x: torch.Tensor) -> torch.Tensor:
    heads = x.transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2)


def test_a_module_keeps_what_it_imported_and_nothing_else_stays(folder: Path) -> None:
    finders, loaded = list(sys.meta_path), set(sys.modules)
    with stand_ins():
        import needs_a_kernel  # type: ignore[import-not-found]

        assert importlib.import_module("flash_attn").__version__ == GPU_PACKAGES["flash_attn"]
    assert sys.meta_path == finders
    assert not {name.partition(".")[0] for name in set(sys.modules) - loaded} & GPU_PACKAGES.keys()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn")
    module, _ = needs_a_kernel.make()
    torch.testing.assert_close(module(X), _expected(X))
    check(module, (X,), others=[(torch.randn(3, 9, 2, 4),)], dynamic_shapes=SHAPES)


def test_an_installed_package_is_patched_or_stood_in_for(folder: Path) -> None:
    package = folder / "flash_attn"
    package.mkdir()
    (package / "flash_attn_interface.py").write_text(STUB)
    (package / "__init__.py").write_text("from flash_attn.flash_attn_interface import flash_attn_func")
    import needs_a_kernel

    module, _ = needs_a_kernel.make()
    installed = sys.modules["flash_attn"]
    with pytest.raises(RuntimeError, match="CUDA"):
        module(X)
    exported = fx2onnx.export(module, (X,), dynamic_shapes=SHAPES)
    (got,) = run_engines(exported.model_proto, (X,))["runner"]
    torch.testing.assert_close(torch.tensor(got), _expected(X))
    with stand_ins():
        assert sys.modules["flash_attn"] is installed
    with stand_ins("flash_attn"):
        torch.testing.assert_close(
            importlib.import_module("flash_attn").flash_attn_func(X, X, X, causal=True), _expected(X)
        )
    assert sys.modules["flash_attn"] is installed


def test_a_kernel_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry: dict[str, Any] = {}
    for holder in (patching, missing_packages):
        monkeypatch.setattr(holder, "PATCHES", registry)

    @patches("acme_kernels.ops:gate", stands_in=("acme_kernels",))
    def gate(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.sigmoid(x) * scale

    with stand_ins("acme_kernels"):
        for module in ("acme_kernels", "acme_kernels.ops"):
            torch.testing.assert_close(importlib.import_module(module).gate(X, 2.0), torch.sigmoid(X) * 2)


def test_the_command_line_names_the_option_and_takes_it(folder: Path) -> None:
    spec = f"{folder / 'needs_a_kernel.py'}:make"
    with pytest.raises(fx2onnx.UserError) as caught:
        resolve_source(spec)
    assert caught.value.code == "E602"
    assert "--stand-ins flash_attn" in str(caught.value)
    source = resolve_source(spec, stand_ins="flash_attn,mamba_ssm")
    torch.testing.assert_close(source.module(X), _expected(X))


def test_a_package_without_stand_in_is_an_error() -> None:
    with pytest.raises(fx2onnx.UserError, match="no stand-in for deep_speed") as caught, stand_ins("deep_speed"):
        pass
    assert all(name in str(caught.value) for name in GPU_PACKAGES)


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("flash_attn", "flash_attn_varlen_func", {"block_table": X}),
        ("flash_attn", "flash_attn_with_kvcache", {"cache_leftpad": X}),
        ("causal_conv1d", "causal_conv1d_update", {"cache_seqlens": X}),
        ("causal_conv1d", "causal_conv1d_fn", {"activation": "gelu"}),
        ("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined", {"return_varlen_states": True}),
        ("torch_scatter", "scatter", {"reduce": "median"}),
        ("fla.ops", "chunk_gated_delta_rule", {"cu_seqlens": X}),
    ],
)
def test_an_argument_beyond_the_mathematics_is_an_error(module: str, name: str, arguments: dict[str, Any]) -> None:
    with stand_ins():
        function = getattr(importlib.import_module(module), name)
    needed = function.__code__.co_varnames[: function.__code__.co_argcount - len(function.__defaults__)]
    with pytest.raises(fx2onnx.UserError) as caught:
        function(**dict.fromkeys(needed, X), **arguments)
    assert caught.value.code == "E107"
    assert next(iter(arguments)) in caught.value.what


def test_padding_is_taken_out_and_put_back() -> None:
    with stand_ins():
        padding = importlib.import_module("flash_attn.bert_padding")

    def forward(x: torch.Tensor, mask: torch.Tensor) -> Any:
        tokens, indices, ends, _, used = padding.unpad_input(x, mask)
        return padding.pad_input(tokens * 2, indices, x.shape[0], x.shape[1]), ends, used

    def sample(batch: int, length: int) -> Any:
        lengths = torch.arange(1, batch + 1)[:, None]
        return torch.randn(batch, length, 3), (torch.arange(length) < lengths).to(torch.int64)

    x, mask = sample(3, 5)
    wanted = x * 2 * mask[..., None]
    torch.testing.assert_close(forward(x, mask)[0], wanted)
    assert forward(x, mask)[1].tolist() == [0, 1, 3, 6]
    axes = {0: "batch", 1: "length"}
    check(forward, (x, mask), others=[sample(2, 7)], dynamic_shapes={"x": axes, "mask": axes})
