"""Stands in for Ray's Python interface: as many GPUs as nodes have joined."""

import os

import proof_calls


def init(**options):
    """Fail as Ray does while its head is not there."""
    head = proof_calls.FOLDER / "head"
    if not head.exists() or head.read_text() != os.environ["RAY_ADDRESS"]:
        raise ConnectionError("no Ray at that address")


def cluster_resources():
    """Return the resources of the nodes that joined."""
    nodes = proof_calls.alive()
    proof_calls.record("cluster_resources", alive=nodes)
    return {"GPU": float(proof_calls.GPUS_PER_NODE * len(nodes))}
