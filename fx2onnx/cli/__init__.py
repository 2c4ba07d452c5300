"""The command line: ``fx2onnx export | run | verify | list``."""
