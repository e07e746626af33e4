"""Prices against published step times: pretraining rows, and the passes of verl's FSDP engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_training import architecture, price_row, rows, summary

from rpegc.cost.forward import price_forward
from rpegc.cost.framework import KNOWN_INTERVAL
from rpegc.cost.training import price_training
from rpegc.cost.work import StageWork
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths
from rpegc.target import MeshClass, ShardedLayout, columns_of


def _errors(family: str, moe: bool, machines: tuple[str, ...] | None = None) -> list[float]:
    return [
        float(price_row(row).seconds[0]) / float(row["seconds"]) - 1.0
        for row in rows("training_steps.csv")
        if row["family"].split()[0] == family
        and ("A3B" in row["model"]) == moe
        and (machines is None or row["gpu"] in machines)
    ]


@pytest.mark.parametrize(
    ("family", "moe", "count", "median_limit", "p90_limit"),
    [
        ("llm-foundry", False, 45, 0.04, 0.10),
        ("prime-rl", False, 16, 0.07, 0.16),
        ("prime-rl", True, 7, 0.15, 0.20),
        ("megatron-bridge", True, 3, 0.15, 0.15),
        ("megatron-bridge", False, 5, 0.07, 0.35),
        ("torchtitan", False, 4, 0.13, 0.15),
    ],
)
def test_step_times_match_published_rows(
    family: str, moe: bool, count: int, median_limit: float, p90_limit: float
) -> None:
    errors = _errors(family, moe)
    median, p90, bias = summary(errors)
    print(
        f"{family} {'MoE' if moe else 'dense'}: "
        f"{len(errors)} rows, median {median:.1%}, p90 {p90:.1%}, bias {bias:+.1%}"
    )
    assert len(errors) == count
    assert median <= median_limit
    assert p90 <= p90_limit


def test_dense_rows_as_a_whole() -> None:
    errors = [
        error
        for family in ("llm-foundry", "prime-rl", "megatron-bridge", "torchtitan")
        for error in _errors(family, False)
    ]
    median, p90, bias = summary(errors)
    print(f"dense: {len(errors)} rows, median {median:.1%}, p90 {p90:.1%}, bias {bias:+.1%}")
    assert median <= 0.05
    assert p90 <= 0.15
    assert abs(bias) <= 0.03


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
        assert median <= 0.14
        # 80 % of the rows inside the published band
        inside = [1 / KNOWN_INTERVAL.value <= 1 / (1 + value) <= KNOWN_INTERVAL.value for value in values]
        assert sum(inside) >= 0.8 * len(inside)
