"""Host stages: more workers never cost more, whole samples and the slowest sample count."""

from __future__ import annotations

import pytest

from rpegc.cost.functions import price_function
from rpegc.cost.work import StageWork
from rpegc.hardware import load_machine
from rpegc.ir.graph import Op
from rpegc.lengths import Lengths

MACHINE = load_machine("gh200-alps")


def seconds(prompts: int = 128, cpu_seconds: float = 0.5, workers: int = 64, nodes: int = 4) -> dict[str, float]:
    work = StageWork(
        stage="verify",
        op=Op.FUNCTION,
        role="",
        architecture=None,
        framework="verl",
        engine_class="fsdp",
        prompts=prompts,
        samples_per_prompt=16,
        minibatches=1,
        epochs=1,
        prompt_tokens=Lengths.fixed(100),
        response_tokens=Lengths.fixed(100),
        cpu_seconds_per_sample=cpu_seconds,
        workers_per_node=workers,
    )
    return {term.name: float(term.seconds.sum()) for term in price_function(work, nodes, MACHINE)}


def test_even_share_rounding_and_slowest_sample_add_up() -> None:
    terms = seconds()
    assert terms["work"] == pytest.approx(2048 * 0.5 / 256)
    assert terms["rounding"] == pytest.approx(0.0)
    assert seconds(prompts=129)["rounding"] > 0.1
    assert terms["slowest_sample"] > 0.5


def test_the_stage_lasts_at_least_as_long_as_its_slowest_sample() -> None:
    assert sum(seconds(workers=100_000, nodes=1000).values()) >= 2 * 0.5


def test_free_verifiers_cost_nothing_and_costlier_ones_cost_more() -> None:
    assert sum(seconds(cpu_seconds=0.0).values()) == 0.0
    assert sum(seconds(cpu_seconds=1.0).values()) == pytest.approx(2 * sum(seconds(cpu_seconds=0.5).values()))


def test_more_nodes_never_cost_more_and_workers_beyond_the_cores_do_not_count() -> None:
    totals = [sum(seconds(nodes=nodes).values()) for nodes in (1, 2, 4, 8, 64)]
    assert totals == sorted(totals, reverse=True)
    cores = int(MACHINE.host_cores.value)
    assert seconds(workers=cores) == seconds(workers=10 * cores)
