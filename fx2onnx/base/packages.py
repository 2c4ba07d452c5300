"""Packages that an installation may lack, or has in a version that lacks what is needed: the runner and the tools on files
need few, the exporter needs torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

from fx2onnx.base.errors import UserError

EXTRAS = {
    "torch": "torch", "onnxruntime": "ort", "transformers": "hf", "torchvision": "zoo", "timm": "zoo",
    "sklearn": "zoo", "distributed": "cluster", "diffusers": "diffusers", "z3": "proofs",
    "sentence_transformers": "zoo", "gguf": "gguf", "numba": "fast",
}  # fmt: skip
"""The extra of fx2onnx that brings a package, by the name that Python imports."""


GPU_PACKAGES = {
    "flash_attn": "2.8.3", "mamba_ssm": "2.2.6", "causal_conv1d": "1.5.2", "xformers": "0.0.32", "torch_scatter": "2.1.2",
    "torch_sparse": "0.6.18", "torch_cluster": "1.6.3", "fla": "0.3.2",
}  # fmt: skip
"""Packages of kernels that need a GPU or a compiler, which ``fx2onnx.model_patches.stand_ins`` stands in for, and the version whose
functions it has."""


def require(name: str) -> None:
    """Raises UserError E602, with the command that installs it, where the package is missing."""
    if sys.modules.get(name) is None and importlib.util.find_spec(name) is None:
        raise _missing(name)


def missing_package(error: BaseException) -> UserError | None:
    """The error for an import that failed for want of a package of ``EXTRAS``."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _missing(name) if name in EXTRAS and importlib.util.find_spec(name) is None else None


def _missing(name: str) -> UserError:
    return UserError(
        "E602", f"the package {name} is not installed, which this needs", next=f"pip install 'fx2onnx[{EXTRAS[name]}]'"
    )


def import_part(module: str) -> ModuleType:
    """``importlib.import_module`` for a part of fx2onnx that may need more packages. Raises UserError E602."""
    with importing():
        return importlib.import_module(module)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Around an import of a part of fx2onnx that may need more packages, or other versions of them. Raises UserError E602."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        missing = missing_package(error) or _lacking(error)
        raise (error if missing is None else missing) from error


def _lacking(error: ImportError | AttributeError) -> UserError | None:
    """The error for a name that this version of a package does not have; None where it is no package's name."""
    package = (_home(error.obj) if isinstance(error, AttributeError) else error.name or "").partition(".")[0]
    module = sys.modules.get(package)
    if module is None or package == "fx2onnx" or package in sys.stdlib_module_names:
        return None
    return UserError(
        "E602",
        f"{package} {getattr(module, '__version__', '')} lacks what fx2onnx needs: {error}",
        next=f"pip install {TRIED.get(package, package)}; the versions that were tried are in docs/measured/compatibility.md",
    )


def _home(holder: object) -> str:
    """The module that a module, a class or an object comes from."""
    if isinstance(holder, ModuleType):
        return holder.__name__
    return str(getattr(holder if isinstance(holder, type) else type(holder), "__module__", ""))


TRIED = {"torch": "'torch>=2.8,<2.16'"}
"""The requirement for pip that gives a version that was tried, by package."""
