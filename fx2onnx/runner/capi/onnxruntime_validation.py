"""A stand-in for onnxruntime's look at the machine and its package; there is nothing to look at here."""

from fx2onnx.base.metadata import VERSION


def check_distro_info() -> None:
    """Accepted: every machine with NumPy will do."""


def check_training_module() -> tuple[bool, str, str, str]:
    """Return whether onnxruntime's training package is there, and its name, version and CUDA version: it is not."""
    return False, "fx2onnx", VERSION, ""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    return "fx2onnx", VERSION, ""
