"""``diffusers:FOLDER``: the components of a diffusers pipeline."""
