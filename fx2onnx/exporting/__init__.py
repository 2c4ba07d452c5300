"""The work of ``fx2onnx.export`` and ``fx2onnx.export_folder`` below their signatures. (``fx2onnx.export`` itself is
the function.)
"""
