"""Sessions and values under the module that onnxruntime defines them in."""

from fx2onnx.runner.devices import OrtDevice, OrtDeviceVendorId, copy_tensors
from fx2onnx.runner.ort_value import IOBinding, OrtValue
from fx2onnx.runner.session import InferenceSession

Session = InferenceSession

__all__ = [
    "IOBinding", "InferenceSession", "OrtDevice", "OrtDeviceVendorId", "OrtValue", "Session", "copy_tensors",
]  # fmt: skip
