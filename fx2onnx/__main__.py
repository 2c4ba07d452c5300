"""``python -m fx2onnx``: the command line."""

from fx2onnx.cli.main import main

if __name__ == "__main__":
    main()
