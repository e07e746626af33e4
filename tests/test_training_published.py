"""Prices against published step times: pretraining rows, and the passes of verl's FSDP engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_training import architecture, cases, price_case, rows, summary

from rpegc.cost.forward import price_forward
from rpegc.cost.framework import KNOWN_INTERVAL
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import MeshClass, ShardedLayout, columns_of


def _errors(origin: str, moe: bool | None = None) -> list[float]:
    return [
        float(price_case(case).seconds[0]) / case.seconds - 1.0
        for case in cases()
        if origin in case.origin and moe in (None, case.mixture)
    ]


@pytest.mark.parametrize(
    ("origin", "moe", "least", "median_limit", "p90_limit"),
    [
        ("mpt", False, 130, 0.035, 0.09),
        ("megatron_bridge", False, 60, 0.06, 0.16),
        ("megatron_bridge", True, 50, 0.10, 0.30),
        ("nemo", False, 25, 0.06, 0.15),
        ("papers", False, 12, 0.06, 0.12),
        ("prime_rl", None, 20, 0.09, 0.16),
        ("torchtitan", False, 18, 0.10, 0.20),
        ("apertus", False, 5, 0.05, 0.20),
    ],
)
def test_step_times_match_published_rows(
    origin: str, moe: bool | None, least: int, median_limit: float, p90_limit: float
) -> None:
    """One source at a time: a mean over all of them would hide one that is wrong."""
    errors = _errors(origin, moe)
    median, p90, bias = summary(errors)
    print(f"{origin} {moe}: {len(errors)} rows, median {median:.1%}, p90 {p90:.1%}, bias {bias:+.1%}")
    assert len(errors) >= least
    assert median <= median_limit
    assert p90 <= p90_limit


def test_verl_passes_match_published_logs() -> None:
    """Old log-probabilities, reference and update of verl's FSDP engine, 3B to 72B; parameters offloaded."""
    errors: dict[str, list[float]] = {"update_s": [], "old_logprob_s": [], "reference_s": []}
    for row in rows("rl_passes.csv"):
        gpus = int(row["gpus"])
        mesh = MeshClass(1, gpus)
        work = StageWork(
            stage="update",
            op=Op.TRAIN,
            role="actor",
            architecture=architecture(row["model"]),
            framework="verl",
            engine_class="fsdp",
            prompts=int(row["prompts"]),
            samples_per_prompt=int(row["samples_per_prompt"]),
            minibatches=int(row["minibatches"]),
            epochs=1,
            prompt_tokens=Lengths.fixed(int(row["mean_prompt"])),
            response_tokens=Lengths.from_mean(int(row["mean_response"]), int(row["max_response"])),
            trained=True,
            lora_rank=int(row["lora_rank"]),
        )
        layout = ShardedLayout(
            dp=gpus,
            zero=3,
            shard_size=gpus,
            micro_batch=int(row["micro_batch"]),
            recompute=row["recompute"],
            offload_parameters=True,
            offload_optimizer=True,
        )
        machine, columns = load_machine(row["machine"]), columns_of([layout], mesh)
        forward = replace(work, op=Op.FORWARD)
        resident = columns_of([replace(layout, offload_parameters=False)], mesh)  # the base model stays on the GPU
        predicted = {
            "update_s": price_training(work, mesh, columns, machine),
            "old_logprob_s": price_forward(forward, mesh, columns, machine),
            "reference_s": price_forward(forward, mesh, resident, machine),
        }
        for name, table in predicted.items():
            errors[name].append(float(table.seconds[0]) / float(row[name]) - 1.0)
    for name, values in errors.items():
        median, _, bias = summary(values)
        print(f"{name}: {len(values)} rows, median {median:.1%}, bias {bias:+.1%}")
        assert median <= 0.15
        # 80 % of the rows inside the published band
        inside = [1 / KNOWN_INTERVAL.value <= 1 / (1 + value) <= KNOWN_INTERVAL.value for value in values]
        assert sum(inside) >= 0.8 * len(inside)
