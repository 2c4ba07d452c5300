"""Whatever forward changes of the module and of its arguments, at any depth, is as before: after each export, verify, locate and
profile, failed ones included.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fx2onnx
from fx2onnx import locate, verify

X = torch.arange(6.0).reshape(2, 3) / 4


class Slotted:
    __slots__ = ("count", "h")

    def __init__(self) -> None:
        self.h, self.count = torch.ones(2, 3), 0


class Own:
    def __init__(self) -> None:
        self.h, self.items, self.inner = torch.ones(2, 3), [torch.ones(3)], Slotted()


@dataclass
class Data:
    h: torch.Tensor
    count: int = 0


def _function_with_state(seen: list[int]) -> Callable[..., int]:
    def function(more: int, kept: list[int] = seen, *, by_name: dict[str, int] = {"a": 1}) -> int:  # noqa: B006
        kept.append(more)
        by_name["b"] = more
        return more

    function.count = 0  # type: ignore[attr-defined]
    return function


GLOBAL, GLOBALS = types.SimpleNamespace(h=torch.ones(2, 3), count=0), {"h": torch.ones(2, 3), "list": [torch.ones(3)]}
TENSOR, OTHER = torch.ones(3), nn.BatchNorm1d(3)


class Shared:
    h, items = torch.ones(2, 3), [torch.ones(3)]


class Keeps:
    """A hook that keeps what it is called with, on itself and on the module."""

    def __init__(self) -> None:
        self.last, self.calls = None, []

    def __call__(self, module: Any, given: Any, found: Any = None) -> None:
        self.last = found if found is not None else given[0]
        self.calls.append(self.last)
        module.kept = self.last


class Net(nn.Module):
    """Holds every kind of state, and objects that cannot be copied; ``ways`` change some of it."""

    __slots__ = ("never", "slot")

    def __init__(self, ways: list[Callable[[Any, Any, torch.Tensor], Any]], end: BaseException | None = None) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.fc.bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("beside", torch.zeros(3), persistent=False)
        self.h, self.none, self.count, self.flag, self.word = torch.ones(2, 3), None, 0, False, "a"
        self.pair = (torch.zeros(3), [torch.zeros(3)])
        self.items: list[Any] = [torch.zeros(3), [torch.ones(3)], {"a": torch.zeros(3)}]
        self.named: dict[Any, Any] = {"h": torch.zeros(3), "deep": {"list": [1, 2]}}
        self.ordered = OrderedDict(a=torch.zeros(3), b=1)
        self.many = defaultdict(list, a=[torch.zeros(3)])
        self.recent, self.marks = deque([torch.zeros(3)], maxlen=2), {1, "b"}
        self.space = types.SimpleNamespace(h=torch.zeros(3), inner=types.SimpleNamespace(count=0))
        self.own, self.array, self.parts = Own(), np.zeros(3), [nn.Linear(3, 3)]
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.inner[0].state = torch.zeros(3)
        self.slot, self.writes = torch.zeros(2, 3), 0
        self.lock, self.numbers, self.file = threading.Lock(), (n for n in range(9)), open(__file__)  # noqa: SIM115
        self.leaf = torch.ones(3, requires_grad=True)
        self.fc.weight.grad, self.fc.weight.tag, self.fc.weight.held = torch.ones(3, 3), "t", {"h": torch.zeros(3)}
        self.norm.running_mean.tags = [1]
        self.local, self.mixed = threading.local(), np.array([1, "a"], dtype=object)
        self.signed = np.array([-0.0, 1.0])
        self.local.h = torch.zeros(3)
        self.function, self.partial = _function_with_state([1]), functools.partial(dict, h=[torch.zeros(3)])
        self.view_of = types.MappingProxyType({"list": [torch.zeros(3)]})
        self.optimizer = torch.optim.SGD([self.leaf], lr=0.1)
        self.alias, self.view, self.tied = self.seen, self.seen[1:], self.fc.weight
        self.reference, self.proxy = weakref.ref(self.inner), weakref.WeakValueDictionary(inner=self.inner)
        self.fc.register_forward_hook(Keeps())
        self.norm.register_forward_pre_hook(Keeps())
        self.ways, self.end = ways, end

    def __repr__(self) -> str:
        raise RuntimeError("this module does not say what it is")

    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError("this module cannot be copied")

    def __getattr__(self, name: str) -> Any:
        return self.own.h if name == "of_own" else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "writes" in self.__dict__ and name != "training":
            self.__dict__["writes"] += 1
        super().__setattr__(name, value)

    @property
    def through(self) -> torch.Tensor:
        return self.h + self.of_own

    @through.setter
    def through(self, value: torch.Tensor) -> None:
        self.h = value

    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        y = self.norm(self.fc(x))
        for way in self.ways:
            found = way(self, given, y)
            y = y if found is None else y + found
        if self.end is not None:
            raise self.end
        return y


def _fills_globally(net: Any, _: Any, y: torch.Tensor) -> torch.Tensor:
    Shared.items.append(y)
    GLOBALS["list"].clear()
    GLOBALS["more"] = y
    return OTHER.train()(y)


def _set(holder: Any, name: Any, value: Any) -> Any:
    if isinstance(holder, dict | list | deque):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _into(holder: Callable[[Any, Any], Any], name: Any) -> dict[str, Callable[[Any, Any, torch.Tensor], Any]]:
    """A tensor at a place is read, and then is another one, or has other numbers."""

    def read(m: Any, g: Any) -> torch.Tensor:
        found = holder(m, g)
        return found[name] if isinstance(found, dict | list | deque) else getattr(found, name)

    def rebinds(m: Any, g: Any, y: torch.Tensor) -> Any:
        before = read(m, g)
        _set(holder(m, g), name, before + y.mean())
        return before

    return {
        "rebinds": rebinds,
        "adds": lambda m, g, y: read(m, g).add_(1).sum(),
        "adds to data": lambda m, g, y: read(m, g).data.mul_(2).sum(),
    }


def _twice(m: Any, g: Any, y: torch.Tensor) -> Any:
    m.h, m.none = m.h + 1, y
    return m.h


def _deletes(m: Any, g: Any, y: torch.Tensor) -> None:
    del m.h, m.space.h, m.named["h"], m.own.inner.h, m.fc.bias


def _fills(m: Any, g: Any, y: torch.Tensor) -> None:
    m.items.append(y)
    m.items[1].insert(0, y)
    m.named[y.shape] = m.named["deep"]["list"]
    m.named["deep"]["list"].append(3)
    m.many["b"].append(y)
    m.recent.append(y)
    m.recent.appendleft(y)
    m.marks.add(3)
    m.ordered.move_to_end("a")


def _empties(m: Any, g: Any, y: torch.Tensor) -> None:
    m.items.pop()
    m.named.clear()
    m.many.pop("a")
    m.marks.discard(1)
    m.recent.clear()


def _counts(m: Any, g: Any, y: torch.Tensor) -> None:
    m.count, m.flag, m.word, m.space.inner.count = m.count + 1, not m.flag, m.word + "b", m.space.inner.count + 1
    m.array += 1
    m.own.inner.count += 1


def _registers(m: Any, g: Any, y: torch.Tensor) -> None:
    m.register_buffer("more", y)
    m.extra, m.fc.extra = nn.Parameter(torch.ones(3)), y
    m.fc.register_forward_hook(lambda *args: None)
    m.inner = nn.Linear(3, 3)
    setattr(m.parts[0], "weight", nn.Parameter(torch.ones(3, 3)))  # noqa: B010
    m.parts[0].cache = y


def _sets_flags(m: Any, g: Any, y: torch.Tensor) -> None:
    m.train()
    m.fc.weight.requires_grad_(False)
    m.fc.bias.requires_grad_(True)
    m.inner.eval()


def _in_given(m: Any, g: Any, y: torch.Tensor) -> None:
    g.count = getattr(g, "count", 0) + 1
    g.more = y
    if isinstance(g, Own):
        g.items.append(y)
        g.inner.count += 1
        g.inner.h = y


PLACES: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "attribute": (lambda m, g: m, "h"),
    "buffer": (lambda m, g: m, "seen"),
    "transient buffer": (lambda m, g: m, "beside"),
    "submodule": (lambda m, g: m.inner[0], "state"),
    "weight": (lambda m, g: m.fc.weight, "data"),
    "list": (lambda m, g: m.items, 0),
    "nested list": (lambda m, g: m.items[1], 0),
    "dict in a list": (lambda m, g: m.items[2], "a"),
    "list in a tuple": (lambda m, g: m.pair[1], 0),
    "dict": (lambda m, g: m.named, "h"),
    "ordered dict": (lambda m, g: m.ordered, "a"),
    "defaultdict": (lambda m, g: m.many["a"], 0),
    "deque": (lambda m, g: m.recent, 0),
    "namespace": (lambda m, g: m.space, "h"),
    "own class": (lambda m, g: m.own, "h"),
    "slots": (lambda m, g: m.own.inner, "h"),
    "argument": (lambda m, g: g, "h"),
    "global": (lambda m, g: GLOBAL, "h"),
    "global dict": (lambda m, g: GLOBALS, "h"),
    "global list": (lambda m, g: GLOBALS["list"], 0),
    "class": (lambda m, g: Shared, "h"),
    "list of a class": (lambda m, g: Shared.items, 0),
    "global module": (lambda m, g: OTHER, "running_mean"),
}


def _sets_a_slot(net: Any, _: Any, y: torch.Tensor) -> torch.Tensor:
    net.slot = net.slot + y
    net.never = [y]
    return net.slot


def _by_property(net: Any, _: Any, y: torch.Tensor) -> torch.Tensor:
    net.through = net.through + y
    return net.through


def _behind_a_lock(net: Any, _: Any, y: torch.Tensor) -> torch.Tensor:
    with net.lock:
        net.inner.state = net.reference()[0].state + y
    return net.proxy["inner"](y)


def _on_tensors(net: Any, _: Any, y: torch.Tensor) -> None:
    net.fc.weight.tag, net.fc.weight.held["h"], net.fc.weight.more = "u", y, y
    net.fc.bias.more, net.h.more = 1, y
    net.norm.running_mean.tags.append(y)


def _takes_gradients(net: Any, _: Any, y: torch.Tensor) -> None:
    net.zero_grad()
    net.leaf.requires_grad_(False)
    net.seen.requires_grad_(True)
    net.fc.weight.register_hook(lambda gradient: gradient)


def _gives_a_gradient(net: Any, _: Any, y: torch.Tensor) -> None:
    net.leaf.grad = y.sum() * torch.ones(3)
    net.fc.weight.grad.add_(1)


def _in_functions(net: Any, _: Any, y: torch.Tensor) -> None:
    net.function(2)
    net.function.count += 1
    net.function.last = y
    net.partial.keywords["h"].append(y)
    net.view_of["list"].append(y)


def _of_a_thread(net: Any, _: Any, y: torch.Tensor) -> None:
    net.local.h = net.local.h + y
    net.local.more = y
    net.mixed[1] = y.shape[0]


def _in_arrays(net: Any, _: Any, y: torch.Tensor) -> None:
    net.array.resize(5, refcheck=False)
    net.signed[:] = 0.0


def _in_an_optimizer(net: Any, _: Any, y: torch.Tensor) -> None:
    net.optimizer.param_groups[0]["lr"] = 1.0
    net.optimizer.state[net.leaf] = {"step": y}


def _by_aliases(net: Any, _: Any, y: torch.Tensor) -> torch.Tensor:
    net.alias.add_(1)
    net.view.mul_(2)
    return net.seen.sum() + net.tied.sum()


def _is_of_another_class(net: Any, _: Any, y: torch.Tensor) -> None:
    net.fc.__class__ = nn.Identity


WAYS: dict[str, Callable[[Any, Any, torch.Tensor], Any]] = {
    f"{name} in {place}": way for place, at in PLACES.items() for name, way in _into(*at).items()
} | {
    way.__name__.strip("_").replace("_", " "): way
    for way in (
        _twice,
        _deletes,
        _fills,
        _empties,
        _counts,
        _registers,
        _sets_flags,
        _in_given,
        _sets_a_slot,
        _by_property,
        _behind_a_lock,
        _on_tensors,
        _takes_gradients,
        _gives_a_gradient,
        _in_functions,
        _of_a_thread,
        _in_arrays,
        _in_an_optimizer,
        _by_aliases,
        _is_of_another_class,
        _fills_globally,
    )
}
GIVEN: dict[str, Callable[[], Any]] = {
    "namespace": lambda: types.SimpleNamespace(h=torch.ones(2, 3)),
    "own": Own,
    "dataclass": lambda: Data(torch.ones(2, 3)),
}
ENDS = {"ends": None, "fails": ValueError("no"), "is interrupted": KeyboardInterrupt()}


def described(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Which objects there are, what they hold at any depth, and the numbers and flags of tensors."""
    seen = {} if seen is None else seen
    if isinstance(value, bool | int | float | str | bytes | type | types.MethodType | None):
        return value
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    own = [id(value), type(value).__name__]
    if isinstance(value, torch.Tensor):
        grad = None if not value.is_leaf or value.grad is None else described(value.grad, seen)
        beside = described(vars(value), seen), described(value._backward_hooks, seen)
        return (*own, value.data_ptr(), tuple(value.shape), value.tolist(), value.requires_grad, grad, *beside)
    if isinstance(value, types.FunctionType):
        cells = [described(cell.cell_contents, seen) for cell in value.__closure__ or ()]
        return (
            *own,
            *(described(part, seen) for part in (vars(value), value.__defaults__, value.__kwdefaults__)),
            cells,
        )
    if isinstance(value, functools.partial):
        return (*own, described(value.keywords, seen))
    if isinstance(value, np.ndarray):
        return (*own, repr(value.tolist()))  # -0.0 is equal to 0.0
    if isinstance(value, dict | types.MappingProxyType):
        own.append([(key, described(part, seen)) for key, part in value.items()])
    elif isinstance(value, list | tuple | deque):
        own.append([described(part, seen) for part in value])
    elif isinstance(value, set):
        own.append(sorted(map(repr, value)))
    names = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    slots = [(name, described(getattr(value, name, "nothing"), seen)) for name in names]
    parts = getattr(value, "__dict__", None)
    return (*own, slots, None if parts is None else described(parts, seen))


def export(net: Net, args: tuple[Any, ...]) -> None:
    fx2onnx.export(net, args)


def export_and_verify(net: Net, args: tuple[Any, ...]) -> None:
    fx2onnx.export(net, args, verify=True)


def profile(net: Net, args: tuple[Any, ...]) -> None:
    fx2onnx.export(net, args, profile=True, dynamic_shapes=({0: "n"}, None))


def verify_and_locate(net: Net, args: tuple[Any, ...]) -> None:
    result = fx2onnx.export(Net([]), args)
    verify(result, net, args, seeds=())
    locate(result, net, args)


ACTIONS = [export, export_and_verify, profile, verify_and_locate]


def check(ways: list[str], end: str, action: Callable[[Net, Any], None], kind: str, training: bool) -> None:
    net, given = Net([WAYS[way] for way in ways], ENDS[end]).train(training), GIVEN[kind]()
    args = X.clone(), given
    held = net, args, GLOBAL, GLOBALS, TENSOR, OTHER

    def now() -> Any:
        return described(held), described(Shared.h), described(Shared.items)

    before = now()
    with contextlib.suppress(fx2onnx.UserError, fx2onnx.VerificationError, KeyboardInterrupt):
        action(net, args)
    assert now() == before


@pytest.mark.parametrize("way", WAYS)
def test_each_change_is_put_back(way: str) -> None:
    for kind in GIVEN if "argument" in way or "given" in way else ["own"]:
        check([way], "ends", export, kind, training=True)


DRAWN = {
    "ways": st.lists(st.sampled_from([*WAYS]), min_size=1, max_size=6, unique=True),
    "end": st.sampled_from([*ENDS]),
    "action": st.sampled_from(ACTIONS),
    "kind": st.sampled_from([*GIVEN]),
    "training": st.booleans(),
}
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.long
@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=CHECKS)
@given(**DRAWN)
def test_all_is_as_before(ways: list[str], end: str, action: Any, kind: str, training: bool) -> None:
    check(ways, end, action, kind, training)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=CHECKS)
@given(**DRAWN)
def test_all_is_as_before_in_many_modules(ways: list[str], end: str, action: Any, kind: str, training: bool) -> None:
    check(ways, end, action, kind, training)


class Merges(nn.Module):
    """Its own ``train`` merges weights, as adapters do, and freezes some; setting attributes is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.linear, self.added, self.is_merged = nn.Linear(3, 3), nn.Parameter(torch.ones(3, 3)), False

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.get("noted", []).append(name)
        super().__setattr__(name, value)

    def train(self, mode: bool = True) -> Merges:
        super().train(mode)
        if not mode and not self.is_merged:
            self.linear.weight.data += self.added
            self.is_merged, self.linear.bias.requires_grad = True, False
            del self.added
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (0 if self.is_merged else x @ self.added.T)


class Defaults(nn.Module):
    def forward(self, x: torch.Tensor, seen: list[Any] = [], *, at: dict[str, Any] = {"h": torch.zeros(3)}) -> Any:  # noqa: B006, B008
        seen.append(x)
        at["h"] = at["h"] + x.sum(0)
        return x + at["h"]


class Weak(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.by_module = weakref.WeakKeyDictionary({self.linear: torch.zeros(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.by_module[self.linear] = self.by_module[self.linear] + x.sum(0)
        return self.linear(x) + self.by_module[self.linear]


class Hidden(nn.Module):
    """Children in a list, a gradient that forward writes, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.linear, self.generator = [nn.BatchNorm1d(3)], nn.Linear(3, 3), torch.Generator()
        self.linear(X).sum().backward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.bias.grad.zero_()
        return self.norms[0](self.linear(x)) + torch.rand(3, generator=self.generator) + torch.rand(3)


SEEN: list[torch.Tensor] = []


def grows(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(x)
    return x * 2


def _described(net: Any) -> Any:
    forward = getattr(type(net), "forward", net)
    grads = [each.grad for each in net.parameters()] if isinstance(net, nn.Module) else []
    buffers = [buffer for each in getattr(net, "norms", ()) for buffer in each.buffers()]
    draws = torch.get_rng_state().tolist(), getattr(net, "generator", torch.Generator()).get_state().tolist()
    weak = [*getattr(net, "by_module", {}).values()]
    held = [net, forward.__defaults__, forward.__kwdefaults__, SEEN, *grads, *buffers, *weak]
    return [described(each) for each in held], draws


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [Merges, Defaults, Weak, Hidden, lambda: grows])
def test_what_is_rarely_held_is_as_before(make: Any, training: bool) -> None:
    """A module's own ``train`` is not called: its weights might be merged for good."""
    net = make()
    torch.rand(3)
    before = _described(net)
    result = fx2onnx.export(net, (X,), training=training)
    assert _described(net) == before
    verify(result, net, (X,), training=training, seeds=())
    assert _described(net) == before
    with contextlib.suppress(fx2onnx.UserError):
        locate(result, net, (X,), training=training)
    assert _described(net) == before


@pytest.mark.parametrize(
    "way", ["rebinds in attribute", "adds in attribute", "twice", "rebinds in buffer", "rebinds in list"]
)
def test_each_run_of_a_verification_begins_with_the_same_state(way: str) -> None:
    result = fx2onnx.export(Net([WAYS[way]]), (X, Own()), verify=True)
    assert result.report.verdict is not None


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.h, self.count = nn.Linear(3, 3), torch.zeros(2, 3), 0
        self.items = [torch.zeros(3)]
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x) + self.h + self.seen
        self.h = y
        self.count += 1
        self.items.append(y)
        self.seen = self.seen + 1
        return y


@pytest.mark.parametrize("asked", [{}, {"verify": True}], ids=["export", "verify"])
def test_a_scripted_module_is_as_before(asked: dict[str, Any]) -> None:
    module = torch.jit.script(nn.Sequential(Scripted()))
    part = module[0]
    before = [id(part.h), part.count, [*map(id, part.items)], id(part.seen), part.seen.tolist(), part.h.tolist()]
    fx2onnx.export(module, (X,), **asked)
    after = [id(part.h), part.count, [*map(id, part.items)], id(part.seen), part.seen.tolist(), part.h.tolist()]
    assert after == before


def test_variables_of_a_function_are_as_before() -> None:
    count, kept = 0, {"h": torch.zeros(2, 3)}

    def forward(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        kept["h"] = kept["h"] + x
        return kept["h"]

    before = kept["h"]
    fx2onnx.export(forward, (X,), verify=True)
    assert count == 0
    assert kept == {"h": before}
    assert not before.any()


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["auto", "export", "symbolic"])
def test_arguments_of_a_failed_export_have_no_more_attributes(strategy: str) -> None:
    x = torch.ones(2)
    with pytest.raises(fx2onnx.UserError):
        fx2onnx.export(lambda x: ~x, (x,), capture=strategy)
    assert not vars(x)


class Watching(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("held", ["attribute", "buffer", "list"])
def test_tensors_that_see_functions_are_as_before(held: str) -> None:
    made = torch.randn(3).as_subclass(Watching)
    made.note = "own"  # type: ignore[attr-defined]
    module = nn.Module()
    module.own = [made] if held == "list" else nn.Buffer(made) if held == "buffer" else made
    kept: Any = module.own[0] if held == "list" else module.own
    before = dict(vars(kept))
    for shapes in (None, ({0: "n"},)):
        module.forward = lambda x: x + kept
        fx2onnx.export(module, (X,), dynamic_shapes=shapes, verify=True)
        assert vars(kept) == before
        module.forward = lambda x: ~(x + kept)
        with pytest.raises(fx2onnx.UserError, match="E101"):
            fx2onnx.export(module, (X,), dynamic_shapes=shapes)
        assert vars(kept) == before


def test_keys_that_are_sizes_are_put_back() -> None:
    for ways in (["fills"], ["fills", "empties"]):
        check(ways, "ends", profile, "own", training=False)
