"""Kernels of packages that need a GPU, as the mathematics that they compute; a file for each kind. Importing this package registers them."""

from fx2onnx.model_patches.kernels import attention, graphs, masked_attention, state_space  # noqa: F401
