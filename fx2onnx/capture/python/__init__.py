"""Python around forward: frames, arguments, the state of the module and of the process."""
