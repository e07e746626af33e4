"""Site profiles: each loads, fits the machines that name it, and says what it rests on."""

from collections.abc import Callable

import pytest
from verl_plans import colocated_grpo, lora

from backends import backend
from backends.site import load_site, site_names
from rpegc.errors import InputError
from rpegc.frontend.schema_cluster import Site
from rpegc.hardware import load_machine, machine_names


def test_every_site_of_the_language_has_a_profile() -> None:
    assert sorted(Site.__args__) == list(site_names())


@pytest.mark.parametrize("name", machine_names())
def test_a_machine_s_site_has_its_cores(name: str) -> None:
    machine = load_machine(name)
    assert load_site(machine.site).cpus_per_node in (0, machine.host_cores.value)


def test_isambard_starts_on_its_partition_with_its_network(golden: Callable[[str, str], None]) -> None:
    files = backend("verl").emit(colocated_grpo(), "isambard")
    script = files["launch/submit.sbatch"].content.decode()
    assert "#SBATCH --partition=workq\n" in script
    assert "#SBATCH --cpus-per-task=288\n" in script
    assert "--container-image" not in script
    golden(
        "verl/isambard.environment.sh",
        backend("verl").emit(lora(), "isambard")["launch/environment.sh"].content.decode(),
    )


def test_isambard_allows_a_day() -> None:
    long = colocated_grpo(**{"training.total_steps": 5000})
    assert (
        "#SBATCH --time=24:00:00\n" in backend("verl").emit(long, "isambard")["launch/submit.sbatch"].content.decode()
    )


def test_isambard_keeps_the_plug_in_that_its_modules_name() -> None:
    """Alps unsets NCCL_NET_PLUGIN since no uenv has the plug-in `ofi`; Isambard's modules may set a good one."""
    assert "NCCL_NET_PLUGIN" in load_site("alps").unset
    assert load_site("isambard").unset == ()
    assert load_site("isambard").expected_network == load_site("alps").expected_network == "AWS Libfabric"


def test_an_unknown_site_is_refused_with_a_guess() -> None:
    with pytest.raises(InputError, match="isambard"):
        load_site("isambart")
