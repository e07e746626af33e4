import subprocess
import sys
from itertools import pairwise

import pytest

from rpegc.cost import table
from rpegc.errors import InputError, SourcePosition
from rpegc.hardware import PROVENANCES, load_machine, machine_from, machine_names
from rpegc.units import GIB

ALL = machine_names()


@pytest.mark.parametrize("name", ALL)
def test_every_figure_of_every_machine_has_a_provenance_and_a_source(name):
    for key, figure in load_machine(name).figures().items():
        assert figure.provenance in PROVENANCES, key
        assert len(figure.source) > 10, key
        assert figure.value >= 0, key


@pytest.mark.parametrize("name", ALL)
def test_no_kernel_is_faster_than_the_data_sheet(name):
    gpu = load_machine(name).accelerator
    assert gpu.gemm_sustained.value <= gpu.gemm_asymptote.value <= gpu.peak_bf16.value <= gpu.peak_fp8.value
    assert max(gpu.attention_forward_asymptote.value, gpu.attention_table_asymptote.value) < gpu.peak_bf16.value
    assert max(gpu.hbm_achieved.value, gpu.gemm_bandwidth.value) < gpu.hbm_bandwidth.value
    assert max(gpu.eff_weights.value, gpu.eff_kv.value) < 1


def test_alps_has_the_hierarchy_that_cscs_states():
    alps = load_machine("gh200-alps")
    assert [(level.name, level.gpus) for level in alps.levels] == [
        ("gpu", 1),
        ("node", 4),
        ("rack", 448),
        ("system", 10752),
    ]
    assert alps.site == "alps"
    assert alps.links == "direct"
    assert alps.pair_bandwidth.value == 150e9
    assert alps.nic_bandwidth.value == 25e9
    assert alps.accelerator.hbm_bytes.value == pytest.approx(94.5 * GIB)
    assert alps.host_to_device_bandwidth.value > alps.device_to_host_bandwidth.value


def test_memory_is_what_the_driver_reports_not_the_round_number_of_the_name():
    assert load_machine("h100-dgx").accelerator.hbm_bytes.value == pytest.approx(81559 * 2**20, rel=1e-3)
    assert load_machine("h200-dgx").accelerator.hbm_bytes.value == pytest.approx(143771 * 2**20, rel=1e-3)
    assert load_machine("a100-80g").accelerator.hbm_bytes.value == pytest.approx(81920 * 2**20, rel=1e-3)


def test_figures_are_found_by_name():
    alps = load_machine("gh200-alps")
    assert alps.figure("hbm_bytes") is alps.accelerator.hbm_bytes
    assert alps.figure("all_gather.bandwidth") is alps.curves["all_gather"].bandwidth
    assert alps.figure("gpus_per_node").value == 4
    with pytest.raises(KeyError, match="gh200-alps has no figure warp_speed"):
        alps.figure("warp_speed")


def test_an_unknown_machine_is_refused_at_its_place_with_a_guess():
    position = SourcePosition("run.yaml", 3, 12, "  hardware: gh200-alp")
    with pytest.raises(InputError) as caught:
        load_machine("gh200-alp", position)
    message = str(caught.value)
    assert "run.yaml:3:12: unknown hardware `gh200-alp`" in message
    assert "did you mean `gh200-alps`?" in message


@pytest.mark.parametrize("entry", [[1.0, "guessed", "note"], [1.0, "spec", "nowhere"], 1.0])
def test_a_catalogue_file_without_provenance_or_source_does_not_load(entry):
    document = {"sources": {"note": "x"}, "machine": {"gpus_per_node": entry}}
    with pytest.raises(ValueError, match="gpus_per_node"):
        machine_from("broken", document)


def test_provenances_are_those_of_the_price_tables():
    assert PROVENANCES == table.PROVENANCES


def test_importing_the_catalogue_loads_no_yaml_reader():
    code = "import sys, rpegc.hardware; assert not any(name.startswith('ruamel') for name in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_machines_of_one_part_differ_only_in_what_is_around_it():
    alps, isambard = load_machine("gh200-alps"), load_machine("isambard")
    assert isambard.accelerator.name == alps.accelerator.name
    assert isambard.accelerator.peak_bf16.value == alps.accelerator.peak_bf16.value
    assert (isambard.site, isambard.gpus_per_node, isambard.host_cores.value) == ("isambard", 4, 288)
    assert [level.gpus for level in isambard.levels] == [1, 4, 440, 5280]
    h100, h800 = load_machine("h100-dgx"), load_machine("h800")
    assert h800.accelerator.gemm_sustained.value == h100.accelerator.gemm_sustained.value
    assert 9 * h800.pair_bandwidth.value == 4 * h100.pair_bandwidth.value
    assert load_machine("gh200-144g").accelerator.hbm_bandwidth.value == 4.9e12
    assert load_machine("a100-40g").accelerator.hbm_bytes.value == pytest.approx(40960 * 2**20, rel=1e-3)


@pytest.mark.parametrize(("name", "widest"), [("b200", 1.5), ("gb200-nvl72", 1.15), ("a100-40g", 1.1)])
def test_fitted_rates_say_between_what_they_lie(name, widest):
    sustained = load_machine(name).accelerator.gemm_sustained
    low, high = (
        float(word) for word in sustained.source.replace(";", " ").split() if word[0].isdigit() and "e1" in word
    )
    assert sustained.provenance == "fitted"
    assert low <= sustained.value <= high < widest * low


@pytest.mark.parametrize("name", ALL)
def test_levels_nest(name):
    sizes = [level.gpus for level in load_machine(name).levels if level.gpus]
    assert all(outer % inner == 0 for inner, outer in pairwise(sizes))
