"""Count of the kernels of a function that torch.compile would compile, without compiling it.

The function and its backward pass are traced to a graph of ATen operators on fake tensors, decomposed by Inductor's
table and split into forward and backward as AOTAutograd does it, with what is cheap recomputed in backward. In each
graph:

- Each matrix product is one kernel.
- All other operators between two matrix products that depend on each other become one kernel, which reads what the
  products and arguments supply and writes what is used elsewhere.
- Sums over rows, and reductions of a whole tensor, are one more kernel for each group, which reads the same inputs, or
  the group's results where that is less.

Inductor's own choice may differ, mostly by more kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.stateless import _reparametrize_module

from implementations.pytorch.bench.fake_gpu import run_graph

FUSED, FUSED_SUMS, FUSED_CASTS = "compiled", "compiled sums over rows", "compiled casts"
# Name of the kernel, bytes moved, FLOPs, and dtype of the operands of a product.
Recorder = Callable[[str, int, float, torch.dtype | None], None]
_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default}
_VIEWS = {torch.ops.aten.permute.default, torch.ops.aten.view.default, torch.ops.aten.alias.default}
_CASTS = {torch.ops.prims.convert_element_type.default, torch.ops.aten.clone.default}


@dataclass(frozen=True)
class _Count:
    name: str
    moved: int
    flops: float = 0.0
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class _Region:
    """Kernels of a traced function's forward and backward, and the results of both, for one set of shapes."""

    forward: list[_Count]
    backward: list[_Count]
    output: Tensor
    gradients: list[Tensor | None]


def counting_compile(record: Recorder, without_counting: Callable[[], Any]) -> Callable[..., Any]:
    """Return a replacement of torch.compile that counts instead of computing.

    The compiled function must take a module, tensors that need gradients, and numbers, and return one tensor.
    `without_counting` returns a context in which nothing is counted, for the trace.
    """

    def compile_function(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
        regions: dict[Any, _Region] = {}

        def run(module: nn.Module, *arguments: Any) -> Tensor:
            parameters = dict(module.named_parameters())
            tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
            key = tuple(
                (tuple(argument.shape), argument.dtype) if isinstance(argument, Tensor) else argument
                for argument in arguments
            )
            if key not in regions:
                with without_counting():
                    regions[key] = _trace(function, module, parameters, arguments)
            result: Tensor = _Counted.apply(regions[key], record, *tensors, *parameters.values())  # type: ignore[no-untyped-call]
            return result

        return run

    return compile_function


class _Counted(torch.autograd.Function):
    """Records the kernels of a region in each direction; results have the right shapes."""

    @staticmethod
    def forward(ctx: Any, region: _Region, record: Recorder, *inputs: Tensor) -> Tensor:
        ctx.region, ctx.record = region, record
        for count in region.forward:
            record(count.name, count.moved, count.flops, count.dtype)
        return torch.empty_like(region.output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for count in ctx.region.backward:
            ctx.record(count.name, count.moved, count.flops, count.dtype)
        return None, None, *(None if g is None else torch.empty_like(g) for g in ctx.region.gradients)


def _trace(
    function: Callable[..., Tensor], module: nn.Module, parameters: Mapping[str, Tensor], arguments: Sequence[Any]
) -> _Region:
    # Imported only now: Inductor takes seconds to import.
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]

    def joint(primals: list[Tensor], tangents: list[Tensor]) -> list[Tensor | None]:
        leaves = [primal.detach().requires_grad_() for primal in primals]
        own, rest = iter(leaves), dict(zip(parameters, leaves[len(tensors) :], strict=True))
        passed = [next(own) if isinstance(argument, Tensor) else argument for argument in arguments]
        with torch.enable_grad(), _reparametrize_module(module, rest):
            output = function(module, *passed)
        with torch.no_grad():
            run_graph([(output.grad_fn, 0, tangents[0])])
        return [output, *(leaf.grad for leaf in leaves)]

    primals = [*tensors, *parameters.values()]
    with torch.no_grad():
        tangent = torch.empty_like(function(module, *arguments))
        graph = make_fx(joint, decomposition_table=select_decomp_table())(primals, [tangent])
        graph.graph.eliminate_dead_code()
        forward, backward = min_cut_rematerialization_partition(graph, [*primals, tangent], num_fwd_outputs=1)
    gradients = [None if node is None else _value(node) for node in _outputs(backward.graph)]
    return _Region(count_graph(forward.graph), count_graph(backward.graph), tangent, gradients)


def _outputs(graph: fx.Graph) -> list[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return list(output.args[0])


def _value(node: fx.Node) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _bytes(nodes: Sequence[fx.Node]) -> int:
    # Scalars and shapes of dynamic graphs are no tensors.
    return sum(value.nbytes for node in nodes if isinstance(value := node.meta.get("val"), Tensor))


def _find_roots(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return the node that each node's result is read from: its own, or that which it is a view or an element of.

    A cast to a wider type is read from its input too, unless it is a result or the operand of a product.
    """
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        is_view = node.target in _VIEWS or getattr(node.target, "__name__", "") == "getitem"
        if node.target in _CASTS and source is not None:
            is_stored = any(user.op == "output" or user.target in _PRODUCTS | _VIEWS for user in node.users)
            is_view = _value(node).itemsize > _value(source).itemsize and not is_stored
        roots[node] = roots[source] if is_view and source is not None else node
    return roots


def _reduces_rows(node: fx.Node) -> bool:
    """Whether a node reduces its input over the first dimension, or all of it."""
    if not node.all_input_nodes or not getattr(node.target, "__name__", "").startswith(("sum", "amax", "amin", "mean")):
        return False
    value = node.all_input_nodes[0].meta.get("val")
    if not isinstance(value, Tensor) or value.dim() == 0:
        return False
    given: Any = node.args[1] if len(node.args) > 1 else None  # dimensions; none: all of them
    return not given or 0 in [dimension % value.dim() for dimension in given]


def count_graph(graph: fx.Graph) -> list[_Count]:
    """Return the kernels of a graph of ATen operators, by the rules of this module."""
    roots = _find_roots(graph)
    nodes = [node for node in graph.nodes if node.op == "call_function" and roots[node] is node]
    inputs = {node: list(dict.fromkeys(roots[each] for each in node.all_input_nodes)) for node in nodes}
    users: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        for each in inputs[node]:
            users.setdefault(each, []).append(node)
    returned = {roots[node] for node in _outputs(graph) if node is not None}

    # A node's level is the number of products and reductions over rows before it; nodes of one level can be fused.
    level: dict[fx.Node, int] = {}
    for node in nodes:
        before = [level[each] + _ends_level(each) for each in inputs[node] if each in level]
        level[node] = max(before, default=0)
    # What is recomputed for backward depends on arguments only; it is computed where it is first used.
    for group in sorted(_groups(nodes, inputs, level), key=lambda group: -level[group[0]]):
        inside = set(group)
        outside = [level[user] for node in group for user in users.get(node, ()) if user not in inside]
        if outside and not inside & returned and not any(map(_ends_level, group)):
            level |= dict.fromkeys(group, min(outside))
    counts: list[_Count] = []
    for node in nodes:
        if node.target in _PRODUCTS:
            first, second = (_value(operand) for operand in node.all_input_nodes[:2])
            name = getattr(node.target, "__name__", "").partition(".")[0]
            flops = 2.0 * first.numel() * second.shape[-1]
            counts.append(_Count(name, _bytes([*inputs[node], node]), flops, first.dtype))
    for group in _groups(nodes, inputs, level):
        counts += _count_group(group, inputs, users, returned)
    return counts


def _ends_level(node: fx.Node) -> bool:
    return node.target in _PRODUCTS or _reduces_rows(node)


def _groups(
    nodes: list[fx.Node], inputs: dict[fx.Node, list[fx.Node]], level: dict[fx.Node, int]
) -> list[list[fx.Node]]:
    """Return the nodes that are no products in groups of one level that depend on each other."""
    group_of: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        if node.target in _PRODUCTS:
            continue
        group = [node]
        for each in inputs[node]:
            other = group_of.get(each, group)
            if other is not group and level[each] == level[node]:
                group = other + group
                group_of |= dict.fromkeys(group, group)
        group_of |= dict.fromkeys(group, group)
    return list({id(group): group for group in group_of.values()}.values())


def _count_group(
    group: list[fx.Node],
    inputs: dict[fx.Node, list[fx.Node]],
    users: dict[fx.Node, list[fx.Node]],
    returned: set[fx.Node],
) -> list[_Count]:
    inside = set(group)
    sums = [node for node in group if _reduces_rows(node)]
    used = [n for n in group if n in returned or any(user not in inside for user in users.get(n, ()))]
    results = [node for node in used if node not in sums]

    def reads(wanted: list[fx.Node]) -> list[fx.Node]:
        """Return what the group has to read to compute these nodes."""
        found, stack = dict.fromkeys(wanted), list(wanted)
        while stack:
            node = stack.pop()
            for each in inputs[node] if node in inside else ():
                if each not in found:
                    found[each] = None
                    stack.append(each)
        return [node for node in found if node not in inside]

    counts = []
    if results:
        name = FUSED_CASTS if all(node.target in _CASTS for node in group) else FUSED
        counts.append(_Count(name, _bytes([*reads(results), *results])))
    if sums:
        direct = list(dict.fromkeys(each for node in sums for each in inputs[node]))
        from_inputs = _bytes(reads(sums))
        is_written = all(node in results or node not in inside for node in direct)
        counts.append(
            _Count(FUSED_SUMS, _bytes(sums) + min(from_inputs, _bytes(direct) if is_written else from_inputs))
        )
    return counts
