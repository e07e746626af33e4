"""The blocks that say where it runs and what the planner may change: cluster, allow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rpegc.frontend.schema_fields import Block, Name, Positive, Text

MODEL_CHANGES = (
    "merge-critic-reward",
    "minibatches-by-completion",
    "quantize-collectives",
    "quantize-rollout",
    "reuse-rollout-logprobs",
    "share-actor-critic",
    "stream-rollout",
)
"""Rewrites that change the model, the estimator or the selection of samples: used only where the user names them.
A test holds that these are the passes of class `model`, and `stream-rollout`, which is exact in part; the frontend
itself imports no passes."""

Site = Literal["alps", "isambard", "generic"]
Objective = Literal["step_time", "gpu_hours", "usd"]
Target = Literal["verl", "deepspeed", "native"]
TargetFlavour = Literal["trl", "openrlhf"]


Nodes = Annotated[int, Field(ge=1, le=100_000)]


class PoolSpec(Block):
    """A part of the cluster whose nodes are equal."""

    hardware: Name
    """A machine of the catalogue; `rpegc list` names them."""
    nodes: Nodes
    """Nodes that the plan may use of it."""
    partition: Name | None = None
    """SLURM partition of its nodes; absent = that of the site, or the cluster's default."""


class PoolsSpec(Block):
    """Two kinds of machine: one that generates, one that does everything else."""

    train: PoolSpec
    """Trains, runs forward passes and functions."""
    rollout: PoolSpec
    """Generates: every stage of op generate."""
    link_bandwidth: Positive | None = None
    """Bytes per second, GPU and direction between the pools; absent = the slower of the two networks (assumed)."""


class ClusterSpec(Block):
    """The machine that the plan is for: `hardware` and `nodes`, or `pools`."""

    hardware: Name | None = None
    """A machine of the catalogue; `rpegc list` names them."""
    nodes: Nodes | None = None
    """Nodes that the plan may use."""
    pools: PoolsSpec | None = None
    """Two kinds of machine in the place of `hardware` and `nodes`."""
    usd_per_gpu_hour: Positive | None = None
    """What a GPU costs an hour; needed where the objective is `usd` and the catalogue knows no price."""
    site: Site | None = None
    """Launch conventions of the site; absent = those of the hardware."""


class AllowSpec(Block):
    """What the planner may change beyond rewrites that leave every optimizer update as it is."""

    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0
    """Weight versions by which a sample's oldest token may be older than the trainer; 0 = synchronous."""
    partial_rollout: bool = False
    """Whether unfinished samples may carry over to the next step."""
    model_changes: tuple[Text, ...] = ()
    """Rewrites by name that change the model, the estimator or the selection of samples."""
    minimum_gain: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the step time that such a rewrite must save to be used."""
