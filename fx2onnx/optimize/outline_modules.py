"""Modules of a graph as functions: what each call of a module became is one node, with one body for all that are equal.

Bodies are made from the inside out, so that functions call functions. A body takes everything from outside as inputs, weights too;
small constants that all have are in it. Attributes that differ are attributes of the function.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of, nested_graphs
from fx2onnx.irx.private_names import drop_initializer, is_read
from fx2onnx.irx.values import copied_type
from fx2onnx.optimize.function_body import FunctionBody, body_of, define, differing
from fx2onnx.optimize.weights import is_literal


@dataclass(frozen=True)
class FunctionName:
    """The name of the function of a module class."""

    domain: str
    name: str


@dataclass
class Outlined:
    """The result of outlining modules."""

    calls: Counter[str] = field(default_factory=Counter)
    """The number of calls of each function."""
    left: dict[str, str] = field(default_factory=dict)
    """Modules that stay nodes, and why."""


@dataclass(eq=False)
class Region:
    """The nodes of one call of a module, in order."""

    path: str
    kind: FunctionName
    nodes: list[ir.Node]


def outline_modules(model: ir.Model, kinds: Mapping[str, FunctionName], paths: Collection[str]) -> Outlined:
    """Make functions of the modules at the paths of ``kinds``, in place. Nodes say by their names of which module they are: ``paths``
    are those of all.
    """
    return _Outliner(model, kinds, paths).run()


class _Outliner:
    def __init__(self, model: ir.Model, kinds: Mapping[str, FunctionName], paths: Collection[str]) -> None:
        self.model, self.graph = model, model.graph
        self._modules = frozenset(paths)
        self.kinds = kinds
        self.paths: dict[ir.Node, str] = {}
        self.result = Outlined()
        self._names: Counter[tuple[str, str]] = Counter()
        self._owners = {each: node for node in model.graph for each in _nested_nodes(node)}
        """For each node in a body, the node of the main graph that has the body."""
        self._now: dict[ir.Value, ir.Value] = {}
        """The outputs of calls, by the outputs of nodes that are now in functions."""
        self._node_names: Counter[str] = Counter()
        self._version = model.graph.opset_imports.get("", 1)

    def run(self) -> Outlined:
        """All modules, those that hold no others first."""
        self._find_paths()
        for paths in _by_height(self.kinds):
            regions = [region for path in paths for region in self._regions(path)]
            groups: dict[object, list[tuple[Region, FunctionBody]]] = defaultdict(list)
            for region in regions:
                body = body_of(region.nodes)
                groups[region.kind, body.key].append((region, body))
            for members in groups.values():
                self._replace(members)
        if self.result.calls:
            self.graph.sort()
        return self.result

    def _find_paths(self) -> None:
        for node in self.graph:
            path = (node.name or "").rpartition("/")[0]
            if path and path not in self._modules:  # a cast, say, which is where its operand is
                producers = [value.producer() for value in node.inputs if value is not None]
                path = next((self.paths.get(each, "") for each in producers if each is not None), "")
            self.paths[node] = path

    def _regions(self, path: str) -> list[Region]:
        """The nodes below a module; apart where it is called in several places."""
        nodes = [node for node in self.graph if _is_below(self.paths.get(node, ""), path)]
        nodes = self._without_shared(nodes, path)
        if not nodes:
            return []
        kind = self.kinds[path]
        if self._is_convex(set(nodes)):
            return [Region(path, kind, nodes)]
        return [Region(path, kind, run) for run in self._runs(nodes)]

    def _without_shared(self, nodes: list[ir.Node], path: str) -> list[ir.Node]:
        """The nodes without those that other modules share: nodes that hang on none of its weights, such as those that
        make a mask."""
        inside, weighted = set(nodes), set[ir.Node]()
        for node in nodes:
            for value in _read_by(node):
                producer = value.producer()
                if producer in weighted or (producer is None and value.is_initializer() and not _is_small(value)):
                    weighted.add(node)
        if not weighted:
            return nodes
        shared: set[ir.Node] = set()
        for node in reversed(nodes):
            if node in weighted or node in shared:
                continue
            if any(value.is_graph_output() or self._readers(value) - inside for value in node.outputs):
                pending = [node]
                while pending:
                    each = pending.pop()
                    shared.add(each)
                    above = (value.producer() for value in _read_by(each))
                    pending += [one for one in above if one is not None and one in inside and one not in shared]
        parent = path.rpartition(".")[0]
        for node in shared:
            self.paths[node] = parent
        return [node for node in nodes if node not in shared]

    def _readers(self, value: ir.Value) -> set[ir.Node]:
        """The nodes of the main graph that read the value, themselves or in their bodies."""
        return {self._owners.get(user, user) for user, _ in value.uses()}

    def _is_convex(self, inside: set[ir.Node]) -> bool:
        """Return whether nothing leaves and comes back."""
        outside: set[ir.Node] = set()
        for node in self.graph:
            producers = {value.producer() for value in _read_by(node)}
            if node in inside:
                if producers & outside:
                    return False
            elif producers & inside or producers & outside:
                outside.add(node)
        return True

    def _runs(self, nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
        """Nodes that follow each other in the graph: none of another module is between them."""
        inside, runs = set(nodes), list[list[ir.Node]]()
        is_open = False
        for node in self.graph:
            if node not in inside:
                is_open = False
                continue
            if not is_open:
                runs.append([])
            runs[-1].append(node)
            is_open = True
        return runs

    def _replace(self, members: Sequence[tuple[Region, FunctionBody]]) -> None:
        first = members[0]
        if not first[1].outputs:
            return
        own = differing([body for _, body in members])
        kind, number = first[0].kind, self._names[first[0].kind.domain, first[0].kind.name]
        self._names[kind.domain, kind.name] += 1
        name = kind.name if not number else f"{kind.name}_{number + 1}"
        for _, body in members:
            body.inputs = [self._now.get(value, value) for value in body.inputs]
        calls = [self._call(region, body, name, own) for region, body in members]
        for (region, body), call in zip(members[1:], calls[1:], strict=True):
            self._put(region, body, call)
            self.graph.remove(region.nodes)
            for node in region.nodes:
                _read_nothing(node)
        region, body = first
        self._put(region, body, calls[0])
        body.inputs = [self._now.get(value, value) for value in body.inputs]
        self.graph.remove(region.nodes)
        imports = {each.domain: self.graph.opset_imports.get(each.domain, 1) for each in region.nodes} | {
            "": self._version
        }
        function = define(region.path, body, kind.domain, name, own, imports)
        self.model.functions[function.identifier()] = function
        self.graph.opset_imports.setdefault(kind.domain, 1)
        self.model.opset_imports.setdefault(kind.domain, 1)
        self.result.calls[f"{kind.domain}::{name}"] += len(members)
        for _, each in members:
            for value in each.constants:
                if not is_read(value):
                    drop_initializer(value)

    def _call(self, region: Region, body: FunctionBody, name: str, own: Mapping[tuple[int, str], str]) -> ir.Node:
        attributes = [_renamed(body.attribute(slot), text) for slot, text in own.items()]
        outputs = [copied_type(value, value.name or "") for value in body.outputs]
        call = ir.Node(
            region.kind.domain,
            name,
            body.inputs,
            attributes,
            outputs=outputs,
            name=self._node_name(region, name),
            version=1,
        )
        sources = [node.metadata_props["source"] for node in region.nodes if "source" in node.metadata_props]
        if sources:
            call.metadata_props["source"] = sources[0]
        call.metadata_props["module"] = region.path
        self.paths[call] = region.path
        return call

    def _node_name(self, region: Region, name: str) -> str:
        """The name of a call: another one for each call of the same module."""
        wanted = f"{region.path}/{name}"
        self._node_names[wanted] += 1
        count = self._node_names[wanted] - 1
        return f"{wanted}_{count}" if count else wanted

    def _put(self, region: Region, body: FunctionBody, call: ir.Node) -> None:
        """The call in the place of the nodes."""
        inside = {*region.nodes, *(each for node in region.nodes for each in _nested_nodes(node))}
        self.graph.insert_after(region.nodes[-1], call)
        for old, new in zip(body.outputs, call.outputs, strict=True):
            self._now[old] = new
            for user, index in old.uses():
                if user not in inside:
                    user.replace_input_with(index, new)
            for graph in graphs_of(self.model):
                for place, output in enumerate(graph.outputs):
                    if output is old:
                        graph.outputs[place] = new


def _read_nothing(node: ir.Node) -> None:
    """A node that is gone reads nothing any more, nor do its bodies."""
    for each in (node, *_nested_nodes(node)):
        for index in range(len(each.inputs)):
            each.replace_input_with(index, None)


def _renamed(attribute: ir.Attr, name: str) -> ir.Attr:
    return ir.Attr(name, attribute.type, attribute.value)


def _by_height(kinds: Mapping[str, FunctionName]) -> list[list[str]]:
    """Paths by how many levels of others are below them."""
    heights: dict[str, int] = {}
    for path in sorted(kinds, key=lambda path: -path.count(".")):
        heights.setdefault(path, 0)
        for prefix in _prefixes(path)[:-1]:
            if prefix in kinds:
                heights[prefix] = max(heights.get(prefix, 0), heights[path] + 1)
    levels: dict[int, list[str]] = defaultdict(list)
    for path in kinds:
        levels[heights[path]].append(path)
    return [levels[height] for height in sorted(levels)]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _is_below(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _is_small(value: ir.Value) -> bool:
    return value.const_value is not None and is_literal(value.const_value)


def _nested_nodes(node: ir.Node) -> list[ir.Node]:
    return [each for graph in nested_graphs(node) for each in graph.all_nodes()]


def _read_by(node: ir.Node) -> list[ir.Value]:
    """The values that the node and its bodies read."""
    found = [value for value in node.inputs if value is not None]
    for graph in nested_graphs(node):
        found += [value for each in graph.all_nodes() for value in each.inputs if value is not None]
        found += [
            value
            for each in (graph, *(g for n in graph.all_nodes() for g in nested_graphs(n)))
            for value in each.outputs
        ]
    return found
