"""Files that were harmed on purpose, and the share of them that ``fx2onnx.verify`` notices."""
