"""The first wrong node of a file: the module's ATen graph and the file run side by side on the same inputs."""
