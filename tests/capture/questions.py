"""Questions that a module can ask of its tensors and of torch, and that must get the answer of eager PyTorch while it is
captured. A line of ``QUESTIONS`` is an expression over

``x``  the input, float32[2, 3]           ``n``  a second input, int64[4]
``y``  a computed tensor, ``linear(x)``   ``v``  a view of ``x``, ``x.view(-1)``
``c``  a constant made in forward         ``p``, ``b``  a parameter and a buffer of ``self``

whose value has a repr without addresses. ``module_source`` asks it at one of ``PLACES``.
"""

from __future__ import annotations

TYPE = [
    "type(x) is torch.Tensor",
    "type(y) is torch.Tensor",
    "type(v) == torch.Tensor",
    "type(c) is torch.Tensor",
    "type(n) is torch.Tensor",
    "type(p) is torch.nn.Parameter",
    "type(b) is torch.Tensor",
    "type(p.data) is torch.Tensor",
    "type(p.detach()) is torch.Tensor",
    "type(x[0]) is torch.Tensor",
    "type(x + 1) is torch.Tensor",
    "type(x.sum()) is torch.Tensor",
    "type(x.clone()) is torch.Tensor",
    "type(torch.zeros_like(x)) is torch.Tensor",
    "type(torch.full((2, 3), 1.5)) is torch.Tensor",
    "type(torch.split(x, 1)[0]) is torch.Tensor",
    "type(x.max(0).values) is torch.Tensor",
    "type(torch.nn.Parameter(torch.ones(2))).__name__",
    "type(x).__name__",
    "type(y).__qualname__",
    "type(x).__module__",
    "type(x).__mro__ == torch.Tensor.__mro__",
    "builtins.type(x) is torch.Tensor",
    "builtins.type(y).__name__",
    "x.__class__ is torch.Tensor",
    "y.__class__.__name__",
    "v.__class__.__module__",
    "type(x) in {torch.Tensor: 1}",
    "{torch.Tensor: 'tensor', torch.nn.Parameter: 'parameter'}.get(type(y), 'other')",
    "{torch.Tensor: 'tensor'}.get(y.__class__)",
    "dispatch(x)",
    "dispatch(y)",
    "dispatch(p)",
    "isinstance(x, torch.Tensor)",
    "isinstance(y, torch.nn.Parameter)",
    "isinstance(p, torch.nn.Parameter)",
    "isinstance(x, torch.FloatTensor)",
    "isinstance(n, torch.LongTensor)",
    "issubclass(type(x), torch.Tensor)",
    "type(x) is type(torch.Tensor())",
    "type(x) is type(b)",
    "x.type()",
    "n.type()",
    "y.type() == 'torch.FloatTensor'",
    "torch.typename(x)",
    "torch.is_tensor(y)",
    "torch.overrides.has_torch_function((x, y))",
    "torch.overrides.is_tensor_like(x)",
    "torch.overrides.is_tensor_method_or_property(torch.Tensor.add)",
    "'%s' % type(y)",
    "f'{type(x)}'",
    "str(x.__class__)",
    "hasattr(x, 'fake_mode')",
    "hasattr(y, 'constant')",
    "hasattr(y, 'elem')",
    "'FakeTensor' in str(type(y).__mro__)",
    "sorted(vars(x))",
    "sorted(y.__dict__)",
    "set(dir(y)) == set(dir(torch.Tensor()))",
    "x.__torch_function__ is torch.Tensor.__torch_function__ or type(x).__torch_function__ == torch.Tensor.__torch_function__",
    "type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__",
    "inspect.getmro(type(y))[0].__name__",
    "type(copy.copy(y)).__name__",
    "type(copy.copy(x)) is torch.Tensor",
    "copy.copy(x) is x",
    "copy.copy(y).shape == y.shape",
    "type(copy.deepcopy(c)).__name__",
    "operator.is_(type(x), torch.Tensor)",
    "list(map(type, (x, y, p))) == [torch.Tensor, torch.Tensor, torch.nn.Parameter]",
    "getattr(x, '__class__').__name__",
    "torch.nn.parameter.is_lazy(x)",
    "torch.utils._pytree.tree_map(lambda leaf: type(leaf).__name__, [x, (y, p)])",
]
DEVICE = [
    "x.device",
    "y.device.type",
    "str(v.device)",
    "c.device == torch.device('cpu')",
    "p.device == y.device",
    "x.device.index",
    "x.is_cuda",
    "y.is_cpu",
    "y.is_meta",
    "x.get_device()",
    "(x.is_mps, x.is_xpu, x.is_xla)",
    "torch.get_device(y)",
    "y.cpu() is y",
    "x.to('cpu') is x",
    "x.to(p.device) is x",
    "torch.zeros(2, device=y.device).device",
    "torch.empty_like(y).device",
    "torch.get_default_device()",
    "y.untyped_storage().device",
    "x.storage().device",
    "x.storage().is_cuda",
    "y.untyped_storage().device.type == 'meta'",
    "y.is_pinned()",
    "x.is_shared()",
    "torch._C._get_accelerator().type if torch.accelerator.is_available() else None",
    "y.device in {torch.device('cpu')}",
    "hash(y.device) == hash(torch.device('cpu'))",
]
DTYPE = [
    "x.dtype", "y.dtype is torch.float32", "n.dtype == torch.int64", "y.is_floating_point()",
    "torch.is_floating_point(n)", "y.is_complex()", "n.is_signed()", "torch.finfo(y.dtype).max",
    "x.to(torch.float32) is x", "x.float() is x", "torch.result_type(x, n)", "torch.promote_types(x.dtype, n.dtype)",
    "torch.get_default_dtype()", "y.element_size()", "n.itemsize", "y.nbytes", "x.type_as(y) is x",
    "torch.can_cast(n.dtype, y.dtype)", "y.is_quantized",
]  # fmt: skip
LAYOUT = [
    "tuple(x.shape)",
    "type(x.shape).__name__",
    "type(y.size(0)).__name__",
    "type(y.size()).__name__",
    "isinstance(y.shape[0], int)",
    "y.shape == (2, 5)",
    "repr(y.shape)",
    "y.shape[0] in {2, 3}",
    "{2: 'two'}[y.shape[0]]",
    "y.stride()",
    "v.stride()",
    "x.t().stride()",
    "x.t().is_contiguous()",
    "y.is_contiguous(memory_format=torch.contiguous_format)",
    "x[1:].storage_offset()",
    "y.dim()",
    "y.ndim",
    "len(y)",
    "y.numel()",
    "x.nelement()",
    "y.layout",
    "y.is_sparse",
    "x.is_sparse_csr",
    "y.is_mkldnn",
    "y.is_nested",
    "y.is_conj()",
    "y.is_neg()",
    "x.T.shape",
    "y.is_same_size(y + 1)",
    "x.is_set_to(v)",
    "y.dim_order()",
    "x.expand(4, 2, 3).stride()",
]
STORAGE = [
    "type(y.untyped_storage()).__name__",
    "type(x.storage()).__name__",
    "y.untyped_storage().nbytes()",
    "len(y.untyped_storage())",
    "x.storage().size()",
    "y.untyped_storage().resizable()",
    "x.data_ptr() == x.data_ptr()",
    "x.data_ptr() == v.data_ptr()",
    "y.data_ptr() == x.data_ptr()",
    "y.data_ptr() != 0",
    "y.data_ptr() % 64",
    "x[1:].data_ptr() - x.data_ptr()",
    "x.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()",
    "y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()",
    "x.storage().data_ptr() == x.data_ptr()",
    "x.untyped_storage()._cdata == v.untyped_storage()._cdata",
    "torch._C._is_alias_of(x, v)",
    "torch._C._is_alias_of(x, y)",
    "v._base is x",
    "x.view(-1)._base is not None",
    "x.view(-1).view(2, 3)._base is x",
    "x[0]._base is x",
    "y._base is None",
    "x.clone()._base is None",
    "v._is_view()",
    "y._is_view()",
    "y._version",
    "type(y._version).__name__",
    "y.clone().add_(1)._version",
    "x.is_inference()",
    "p.data_ptr() == self.linear.weight.data_ptr()",
    "b.data_ptr() == self.offset.data_ptr()",
    "b.untyped_storage().device",
    "y is y.contiguous()",
    "x.detach() is x",
    "x.contiguous().data_ptr() == x.data_ptr()",
    "x.t().contiguous().data_ptr() == x.data_ptr()",
    "x.reshape(-1).data_ptr() == x.data_ptr()",
]
GRAD = [
    "torch.is_grad_enabled()",
    "torch.is_inference_mode_enabled()",
    "x.requires_grad",
    "y.requires_grad",
    "y.detach().requires_grad",
    "v.requires_grad",
    "c.requires_grad",
    "n.requires_grad",
    "p.requires_grad",
    "b.requires_grad",
    "(y > 0).requires_grad",
    "y.argmax().requires_grad",
    "p.data.requires_grad",
    "(p * 2).requires_grad",
    "x.grad is None",
    "p.grad is None",
    "y.grad_fn is None",
    "x.grad_fn is None",
    "y.detach().grad_fn is None",
    "x.is_leaf",
    "y.is_leaf",
    "p.is_leaf",
    "c.is_leaf",
    "y.retains_grad",
    "y.output_nr",
    "x._backward_hooks",
    "any(each.requires_grad for each in (x, y, p))",
    "with_grad(lambda: torch.is_grad_enabled())",
    "with_grad(lambda: p * 2).requires_grad",
    "with_grad(lambda: p * 2).is_leaf",
    "with_grad(lambda: p * 2).grad_fn is None",
    "with_grad(lambda: (p * 2).grad_fn.name())",
    "with_grad(lambda: p * 2).detach().requires_grad",
    "with_grad(lambda: torch.nn.functional.linear(x, p)).requires_grad",
    "with_grad(lambda: p > 0).requires_grad",
    "with_grad(lambda: torch.zeros_like(p)).requires_grad",
    "with_grad(lambda: p.argmax()).requires_grad",
    "with_grad(lambda: p.max(0)).values.requires_grad",
    "with_grad(lambda: x * 2).requires_grad",
    "with_grad(lambda: y + p.sum()).is_leaf",
]
MODE = [
    "self.training",
    "self.linear.training",
    "torch.jit.is_scripting()",
    "torch.jit.is_tracing()",
    "torch.compiler.is_compiling()",
    "torch.compiler.is_exporting()",
    "torch.compiler.is_dynamo_compiling()",
    "torch._dynamo.is_compiling()",
    "torch.is_autocast_enabled()",
    "torch.is_autocast_enabled('cpu')",
    "torch.get_autocast_dtype('cpu')",
    "torch.is_autocast_cache_enabled()",
    "torch.is_deterministic_algorithms_warn_only_enabled()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.onnx.is_in_onnx_export()",
    "torch.fx._symbolic_trace.is_fx_tracing()",
    "torch.utils._python_dispatch._get_current_dispatch_mode() is None",
    "len(torch.overrides._get_current_function_mode_stack())",
    "torch._C._get_tracing_state() is None",
    "torch.backends.mkldnn.enabled",
    "torch.backends.cuda.flash_sdp_enabled()",
    "torch.backends.mha.get_fastpath_enabled()",
    "torch.get_num_threads() > 0",
    "torch._C._is_torch_function_mode_enabled()",
    "torch._C._len_torch_dispatch_stack()",
]
VALUES = [
    "str(c)",
    "repr(c)",
    "f'{c}'",
    "'%s' % c",
    "c.tolist()",
    "c.numpy().tolist()",
    "float(c.sum())",
    "int(c[0])",
    "c[1].item()",
    "bool(c.all())",
    "list(map(float, c))",
    "c.numpy().dtype.name",
    "numpy.asarray(c).sum().item()",
    "numpy.array(c).shape",
    "c.__array__().dtype.name",
    "str(b)",
    "b.tolist()",
    "b.numpy().sum().item()",
    "str(p.data)",
    "p.detach().numpy().shape",
    "p.data.numpy().shape",
    "p.data.tolist() == p.tolist()",
    "p.detach().sum().item()",
    "torch.equal(c, c)",
    "torch.allclose(c, c + 0)",
    "(c == c.clone()).all().item()",
    "c.max().item()",
    "c in [c]",
    "2.0 in c",
    "format(c[0], '.2f')",
    "f'{c[1]:.3f}'",
    "len(pickle.dumps(c)) > 100",
    "copy.deepcopy(c).tolist()",
    "copy.copy(c).tolist()",
    "torch.from_dlpack(c).tolist()",
    "hash(c) == hash(c)",
    "id(y) == id(y)",
    "y in {y: 1}",
    "len({x, x, y})",
    "y.__hash__() == id(y)",
    "memoryview(c.numpy()).nbytes",
    "torch.tensor([1.0, 2.0]).tolist()",
    "str(torch.arange(3))",
    "torch.tensor(3).item()",
    "range(torch.tensor(3))[-1]",
    "[1, 2, 3][torch.tensor(1)]",
    "torch.tensor([1, 2]).__str__()",
    "torch.tensor([3, 1, 2]).sort().indices.tolist()",
    "numpy.float32(c[0].item()).item()",
    "c.detach().cpu().numpy().tolist()",
]
IDENTITY = [
    "x is x",
    "y.data is y",
    "x.T.T is x",
    "p is self.linear.weight",
    "self.linear.weight is p",
    "b is self.offset",
    "weakref.ref(y)() is y",
    "isinstance(weakref.ref(x)(), torch.Tensor)",
    "with_attribute(y).mark",
    "hasattr(y, 'mark')",
    "sorted(vars(with_attribute(y)))",
    "sorted(vars(with_attribute(y).clone()))",
    "x.view_as(x) is x",
    "y.shape is y.shape",
    "callable(y)",
    "sys.getsizeof(y) == sys.getsizeof(torch.ones(2, 5))",
    "y.__len__()",
    "bool(torch.ones(1))",
    "y.is_distributed() if hasattr(y, 'is_distributed') else None",
    "y.volatile if hasattr(y, 'volatile') else None",
    "y.nbytes == y.untyped_storage().nbytes()",
    "y.__reduce_ex__ is not None",
    "torch.is_storage(y.untyped_storage())",
    "torch.is_nonzero(torch.ones(1))",
    "torch.numel(y)",
    "torch.is_same_size(y, y)",
    "torch.is_conj(y)",
]
NEED_DATA = [
    "x.tolist()", "y.tolist()", "y.numpy()", "numpy.asarray(y)", "str(y)", "f'{x}'", "repr(v)", "y[0, 0].item()",
    "float(y.sum())", "list(range(int(n[0])))", "bool((y > 0).all())", "pickle.dumps(y)",
    "bool(list(y.flatten())[0] > 0)", "format(y[0, 0], '.1f')", "x.__array__()", "torch.from_dlpack(y)",
    "y.__dlpack__()", "copy.deepcopy(y).tolist()", "bytes(y.untyped_storage())", "y.untyped_storage()[0]",
    "y.storage()[0]", "torch.equal(x, y[:, :3])",
]  # fmt: skip
"""What no answer without data is true of: a refusal with the line, never a guess."""

FAMILIES = {
    "type": TYPE, "device": DEVICE, "dtype": DTYPE, "layout": LAYOUT, "storage": STORAGE, "grad": GRAD, "mode": MODE,
    "values": VALUES, "identity": IDENTITY,
}  # fmt: skip
QUESTIONS = [(family, question) for family, questions in FAMILIES.items() for question in questions]

PLACES = ("forward", "function", "lambda", "object")

_IMPORTS = """\
import builtins, copy, functools, inspect, operator, pickle, sys, weakref
import numpy, torch, torch.overrides, torch.utils._pytree, torch.utils._python_dispatch
"""
_TOOLS = '''
@functools.singledispatch
def dispatch(value):
    return "any"

@dispatch.register
def _(value: torch.Tensor):
    return "tensor"

@dispatch.register
def _(value: torch.nn.Parameter):
    return "parameter"

def with_grad(run):
    with torch.enable_grad():
        return run()

def with_attribute(tensor):
    tensor.mark = 7
    return tensor

def code_of(answer):
    """A number that tells answers apart."""
    text = repr(answer)
    return sum((index + 1) * ord(letter) for index, letter in enumerate(text)) % 9973 / 100 + len(text)
'''
_HELPER = """
def asked(self, x, n, y, v, c, p, b):
    return {question}

answer = lambda self, x, n, y, v, c, p, b: {question}

class Asker:
    def __call__(self, self_, *tensors):
        return self.asked(self_, *tensors)

    @staticmethod
    def asked(self, x, n, y, v, c, p, b):
        return {question}
"""
_MODULE = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)
        self.register_buffer("offset", torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, x, n):
        y = self.linear(x)
        v = x.view(-1)
        c = torch.tensor([2.0, 0.25, -1.5])
        p, b = self.linear.weight, self.offset
        result = {call}
        return x * code_of(result) + n.sum()
"""
_CALLS = {
    "forward": "{question}",
    "function": "helper.asked(self, x, n, y, v, c, p, b)",
    "lambda": "(lambda: helper.answer(self, x, n, y, v, c, p, b))()",
    "object": "helper.Asker()(self, x, n, y, v, c, p, b)",
}


def sources(question: str, place: str, helper: str) -> tuple[str, str]:
    """The files of a helper module, called ``helper``, and of the one with ``Model`` that asks ``question`` at ``place``."""
    call = _CALLS[place].format(question=question)
    first = _IMPORTS + _TOOLS + _HELPER.format(question=question)
    return first, f"{_IMPORTS}import {helper} as helper\nfrom {helper} import *\n" + _MODULE.format(call=call)
