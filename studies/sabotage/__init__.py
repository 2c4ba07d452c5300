"""How much of what can go wrong in a file ``fx2onnx.verify`` notices: files that were harmed on purpose."""
