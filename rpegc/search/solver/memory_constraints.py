"""What fits: the constraints on device and host memory. Each function is one, its sentence on top."""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from rpegc.search.solver.expressions import Linear, total, within
from rpegc.search.solver.variables import Data, Literal, Option, Variables


def device_memory(data: Data, v: Variables) -> None:
    """While any stage runs, a GPU holds what all stages on its meshes keep there, plus that stage's working set."""
    saved = shared_weights(data, v)
    for leaf in data.template.leaves:
        path = data.template.path(leaf)
        here = {stage: within(options, path) for stage, options in v.options.items()}
        held = [total(options, lambda option: option.box.held) for options in here.values()]
        kept = sum(held) - sum(saved[leaf])
        for options in here.values():
            if options:
                working = total(options, lambda option: option.box.peak - option.box.held)
                v.model.add(kept + working + v.headroom <= data.problem.device_capacity)


def shared_weights(data: Data, v: Variables) -> dict[int, list[cp_model.IntVar]]:
    """A stage saves its weights where an earlier stage of its group, on its mesh, has the same signature.

    Returns, for each leaf, the units that later stages need not hold again.
    """
    saved: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    for group in data.problem.sharing:
        for position, later in enumerate(group):
            shares = [_shares(data, v, earlier, later) for earlier in group[:position]]
            partners = [literal for literal in shares if literal is not None]
            most = max((option.box.weights for option in v.options[later]), default=0)
            if not partners or not most:
                continue
            for leaf in data.template.leaves:
                units = v.model.new_int_var(0, most, f"saved[{later},{leaf}]")
                here = within(v.options[later], data.template.path(leaf))
                v.model.add(units <= total(here, lambda option: option.box.weights))
                v.model.add(units <= sum(most * literal for literal in partners))
                saved[leaf].append(units)
    return saved


def _shares(data: Data, v: Variables, earlier: str, later: str) -> Literal | None:
    """Return a literal that may be 1 only if both stages sit on one mesh with a signature in common."""
    matches: list[tuple[Option, list[Literal]]] = []
    for option in v.options[earlier]:
        place = (option.node, option.mesh_class)
        mine = option.box.signature_set
        there = [other for other in v.options[later] if (other.node, other.mesh_class) == place]
        matches.append((option, [o.chosen for o in there if not mine.isdisjoint(o.box.signature_set)]))
    if not any(equal for _, equal in matches):
        return None
    share = v.model.new_bool_var(f"share[{earlier},{later}]")
    for option, equal in matches:
        v.model.add_bool_or(*equal, ~option.chosen, ~share)
    return share


def host_memory(data: Data, v: Variables) -> None:
    """A node's host memory holds what all stages on it keep there; meshes cut along GPUs share their nodes."""
    worst = sum(max((o.box.host for o in options), default=0) for options in v.options.values())
    if worst <= data.problem.host_capacity:
        return
    load: dict[int, Linear] = {}
    for node in reversed(range(len(data.template.parents))):
        own = total(within(v.all_options(), (node,)), lambda option: option.box.host)
        children = data.template.children(node)
        load[node] = v.model.new_int_var(0, data.problem.host_capacity, f"host[{node}]")
        v.model.add(load[node] >= own)
        for child in children:
            v.model.add(load[node] >= own + load[child])
        if len(children) > 1:
            together = load[node] >= own + sum(load[child] for child in children)
            v.model.add(together).only_enforce_if(v.along_gpus[node])
