"""Lets ``import torchvision`` succeed where its compiled operators cannot be loaded; importing this file is all it takes.

The torchvision wheel of some package indexes is a CUDA build. Beside a CPU build of PyTorch its extension does not load, and
``import torchvision`` stops at "operator torchvision::nms does not exist". Then, and only then, the operators are declared here
with torchvision's own schemas, and ``torchvision_ops`` gives those that inference needs a CPU kernel. The environment of
``make test`` imports this file at the start of each Python (``torchvision_hook.pth``), the tests do it in any environment.
"""

# It imports nothing that a start of Python has not, since every process of the environment imports it.

import sys


class _Loader:
    """Imports torchvision by its own loader; a second time with declared operators where they were all that is missing."""

    def __init__(self, own):
        self.own = own

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self.own
        try:
            self.own.exec_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error) or "does not exist" not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:  # half imported
                del sys.modules[name]
            import torchvision_ops

            torchvision_ops.declare_operators()
            with torchvision_ops.extension_counts_as_loaded(module.__file__):
                self.own.exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torchvision":
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not _Finder)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder)
