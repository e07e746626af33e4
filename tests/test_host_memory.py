"""Host memory of training stages, per node: an Alps node has about 477 GB for four GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_examples import DENSE, FULLY_SHARDED, MACHINE, MOE, forward, train, work_of

from rpegc.cost.constants import REWARD_WORKER_BYTES
from rpegc.cost.host_memory import node_terms, object_store_bytes, sleep_copy_bytes, weight_tensors
from rpegc.cost.table import PriceTable
from rpegc.frontend.hf_config import load_architecture
from rpegc.target import MeshClass
from rpegc.units import GIB

OFFLOADED = replace(FULLY_SHARDED, offload_parameters=True, offload_optimizer=True)


def _bytes(table: PriceTable, name: str, row: int = 0) -> float:
    found = [term for term in table.memory if term.name == name]
    assert [term.residence for term in found] == ["host"]
    return float(found[0].bytes[row])


@pytest.mark.parametrize("architecture", [DENSE, MOE], ids=["dense", "moe"])
def test_weight_tensors_are_the_model_up_to_norms_and_biases(architecture: object) -> None:
    elements = sum(count * size for count, size in weight_tensors(architecture))  # type: ignore[arg-type]
    assert elements == pytest.approx(architecture.parameters, rel=1e-3)  # type: ignore[attr-defined]


def test_offloaded_states_take_their_bytes_rounded_up_to_powers_of_two() -> None:
    table = train(OFFLOADED, FULLY_SHARDED)
    exact = 4 * DENSE.parameters / 32 * 4  # FP32, a 32nd each, four GPUs per node
    assert exact <= _bytes(table, "offloaded_parameters") < 2 * exact
    assert _bytes(table, "offloaded_optimizer") == pytest.approx(2 * _bytes(table, "offloaded_parameters"))
    assert _bytes(table, "offloaded_parameters", 1) == _bytes(table, "offloaded_optimizer", 1) == 0


def test_smaller_groups_hold_more_on_each_node() -> None:
    table = train(replace(OFFLOADED, shard_size=4), OFFLOADED)
    assert _bytes(table, "offloaded_parameters", 0) == pytest.approx(8 * _bytes(table, "offloaded_parameters", 1))


def test_passes_of_the_trained_model_add_nothing_to_the_host() -> None:
    assert np.all(forward(OFFLOADED, FULLY_SHARDED).bytes("host") == 0)


def test_a_frozen_reference_of_verl_lies_on_the_host_whatever_the_flag_says() -> None:
    work = work_of(trained=False, role="reference")
    table = forward(OFFLOADED, FULLY_SHARDED, work=work)
    assert _bytes(table, "offloaded_parameters", 0) == _bytes(table, "offloaded_parameters", 1) > 0


def test_a_70b_update_on_eight_alps_nodes_needs_room_to_load() -> None:
    large = load_architecture("meta-llama/Llama-3.1-70B", Path("."), None)
    table = train(OFFLOADED, work=work_of(large))
    loading = _bytes(table, "loading_or_checkpoint") + _bytes(table, "offloaded_parameters")
    assert loading + _bytes(table, "offloaded_optimizer") >= 4 * large.parameters  # one rank reads all of it in FP32
    assert table.bytes("host")[0] > 0.6 * MACHINE.host_bytes.value


def test_tied_embeddings_load_the_model_on_every_rank() -> None:
    tied = replace(DENSE, tied_embeddings=True)
    once, everywhere = train(FULLY_SHARDED), train(FULLY_SHARDED, work=work_of(tied))
    assert _bytes(everywhere, "loading_or_checkpoint") > 3 * _bytes(once, "loading_or_checkpoint")


def test_offloaded_activations_are_counted_per_gpu() -> None:
    layout = replace(FULLY_SHARDED, offload_activations=True)
    table = train(layout)
    assert _bytes(table, "offloaded_activations") == pytest.approx(4 * 2 * 16384 * DENSE.hidden * DENSE.layers)


def test_processes_follow_the_gpus_of_the_mesh_on_each_node() -> None:
    half = replace(FULLY_SHARDED, dp=16, shard_size=16)
    whole = _bytes(train(FULLY_SHARDED), "processes")
    assert _bytes(train(half, mesh=MeshClass(8, 2)), "processes") == pytest.approx(whole / 2)


def test_object_store_grows_with_the_samples_between_its_bounds() -> None:
    small = object_store_bytes(work_of(prompts=8), MACHINE)
    assert small == pytest.approx(8 * GIB)
    middle = object_store_bytes(work_of(prompts=1024), MACHINE)
    in_flight = object_store_bytes(work_of(prompts=1024, samples_in_flight_steps=2), MACHINE)
    assert small < middle
    assert in_flight == pytest.approx(2 * middle)
    huge = object_store_bytes(work_of(prompts=1 << 20), MACHINE)
    assert huge == pytest.approx(min(0.3 * MACHINE.host_bytes.value, 200e9))


def test_node_terms_are_host_terms_of_one_row() -> None:
    terms = node_terms(store_bytes=16 * GIB, reward_workers=64)
    assert {term.name for term in terms} == {"node_base", "object_store", "data_workers", "reward_workers"}
    assert terms[-1].bytes[0] == 64 * REWARD_WORKER_BYTES.value
    assert all(term.residence == "host" and term.bytes.shape == (1,) for term in terms)
    assert sleep_copy_bytes(10 * GIB, 4) == pytest.approx(40 * GIB)
