"""All layouts of one stage on one mesh class, as columns: the domain's product, narrowed by arithmetic and by rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpegc.ir.graph import Op, Scalar, Stage
from rpegc.search import arithmetic
from rpegc.target import ENGINE_FIELDS, SHARDED_FIELDS, WORDS, BoolArray, Columns, MeshClass, Rule, with_mesh

Facts = Mapping[str, int | float]
"""The context columns of a stage: heads, layers, max_sequence_tokens, ... (one value each)."""

_DEGREES = ("cp", "ulysses", "tp", "pp", "vpp", "ep", "etp")


def legal_layouts(
    stage: Stage, mesh: MeshClass, facts: Facts, rules: tuple[Rule, ...], refusals: dict[str, int] | None = None
) -> dict[str, NDArray[Any]]:
    """Return every layout of the stage's domain that tiles the mesh and the model and that no rule refuses.

    The columns returned are the layout fields and the mesh columns; they may have zero rows. `refusals` counts, if
    given, how many rows each rule refuses.
    """
    counts: dict[str, int] = {} if refusals is None else refusals
    domain = dict(stage.layouts)
    if stage.op is Op.GENERATE:
        columns = _filtered(with_mesh(_product(domain), mesh), arithmetic.ENGINE, facts, counts)
        columns["replicas"] = mesh.gpus // (columns["engine_dp"] * columns["tp"] * columns["pp"])
        fields = ENGINE_FIELDS
    else:
        columns = _sharded(domain, mesh, facts, counts)
        fields = SHARDED_FIELDS
    return _filtered(with_mesh({name: columns[name] for name in fields}, mesh), rules, facts, counts)


def refusing_rules(stage: Stage, rules: tuple[Rule, ...]) -> Iterator[Rule]:
    """Yield every rule that may refuse a layout of this stage, arithmetic first."""
    if stage.op is Op.GENERATE:
        yield from arithmetic.ENGINE
    else:
        yield from arithmetic.SHARDED_DEGREES
        yield from arithmetic.SHARDED_ROWS
    yield from rules


def with_facts(columns: Columns, facts: Facts) -> dict[str, NDArray[Any]]:
    """Add the context columns that rules may read."""
    rows = len(columns["tp"])
    return dict(columns) | {name: np.full(rows, value) for name, value in facts.items()}


def select(columns: Columns, keep: BoolArray | NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the chosen rows of every column."""
    return {name: array[keep] for name, array in columns.items()}


def _filtered(
    columns: Columns, rules: tuple[Rule, ...], facts: Facts, counts: dict[str, int]
) -> dict[str, NDArray[Any]]:
    view = with_facts(columns, facts)
    keep = np.ones(len(columns["tp"]), dtype=bool)
    for rule in rules:
        allowed = rule.allows(view)
        counts[rule.name] = counts.get(rule.name, 0) + int((~allowed).sum())
        keep &= allowed
    return select(columns, keep)


def _sharded(
    domain: Mapping[str, tuple[Scalar, ...]], mesh: MeshClass, facts: Facts, counts: dict[str, int]
) -> dict[str, NDArray[Any]]:
    degrees = with_mesh(_product({name: domain[name] for name in _DEGREES}), mesh)
    degrees = _filtered(degrees, arithmetic.SHARDED_DEGREES, facts, counts)
    degrees["dp"] = mesh.gpus // (degrees["cp"] * degrees["ulysses"] * degrees["tp"] * degrees["pp"])
    columns = _cross(degrees, _product({name: domain[name] for name in domain if name not in _DEGREES}))
    replicated = columns["dp"] * columns["cp"] * columns["ulysses"]
    whole = columns["shard_size"] == 0
    # 0 stands for the whole mesh; the same number spelled out would be the same layout twice.
    columns = select(
        columns | {"shard_size": np.where(whole, replicated, columns["shard_size"])},
        whole | (columns["shard_size"] < replicated),
    )
    columns["sequence_parallel"] = columns["sequence_parallel"].astype(bool) & (columns["tp"] > 1)
    columns = _filtered(columns, arithmetic.SHARDED_ROWS, facts, counts)
    return select(columns, _distinct_budget(columns, facts))


def _distinct_budget(columns: Columns, facts: Facts) -> BoolArray:
    """Drop token budgets beyond the first that holds all that a rank batches at once: they are the same schedule.

    A training stage batches the sequences of one update, a forward stage those of the step.
    """
    most = np.ceil(facts["sequences_per_pass"] / columns["dp"]) * facts["max_sequence_tokens"]
    listed = np.unique(columns["token_budget"])
    if not len(listed):
        return np.zeros(0, dtype=bool)
    smaller = listed[np.maximum(np.searchsorted(listed, columns["token_budget"]) - 1, 0)]
    smaller_span = smaller * columns["ulysses"] * columns["cp"]
    redundant = (smaller > 0) & (smaller < columns["token_budget"]) & (smaller_span >= most)
    return np.asarray(~redundant, dtype=bool)


def _product(domain: Mapping[str, tuple[Scalar, ...]]) -> dict[str, NDArray[Any]]:
    """Return the Cartesian product of the values, one column a field (words as indices), first field slowest."""
    arrays = []
    for name, values in domain.items():
        coded = [WORDS[name].index(str(value)) if name in WORDS else value for value in values]
        arrays.append(np.asarray(coded))
    grids = np.meshgrid(*arrays, indexing="ij")
    return {name: grid.reshape(-1) for name, grid in zip(domain, grids, strict=True)}


def _cross(left: Columns, right: Columns) -> dict[str, NDArray[Any]]:
    """Return every row of `left` beside every row of `right`."""
    rows_left = len(next(iter(left.values())))
    rows_right = len(next(iter(right.values())))
    crossed = {name: np.repeat(array, rows_right) for name, array in left.items()}
    return crossed | {name: np.tile(array, rows_left) for name, array in right.items()}
