"""Every model of the catalogue has the size that its publisher states."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from rpegc.catalog import catalogue_facts, catalogue_models
from rpegc.errors import InputError
from rpegc.frontend.hf_config import load_architecture

# First figure: elements of all tensors, from the safetensors metadata on the model's page at huggingface.co (for
# Qwen3-0.6B and 1.7B less the stored copy of the tied head). Second: "Number of Paramaters (Non-Embedding)" of Qwen's
# model cards, in billions as published; None where the card has none, and for Qwen2.5 14B and 32B, whose cards (13.1
# and 31.0) lie 0.9 % and 0.7 % below the weights that they describe.
PUBLISHED = {
    "Qwen/Qwen3-0.6B": (596_049_920, 0.44),
    "Qwen/Qwen3-1.7B": (1_720_574_976, 1.4),
    "Qwen/Qwen3-4B": (4_022_468_096, 3.6),
    "Qwen/Qwen3-8B": (8_190_735_360, 6.95),
    "Qwen/Qwen3-14B": (14_768_307_200, 13.2),
    "Qwen/Qwen3-32B": (32_762_123_264, 31.2),
    "Qwen/Qwen3-30B-A3B": (30_532_122_624, 29.9),
    "Qwen/Qwen3-235B-A22B": (235_093_634_560, 234),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, None),
    "Qwen/Qwen2.5-0.5B": (494_032_768, 0.36),
    "Qwen/Qwen2.5-1.5B": (1_543_714_304, 1.31),
    "Qwen/Qwen2.5-3B": (3_085_938_688, 2.77),
    "Qwen/Qwen2.5-7B": (7_615_616_512, 6.53),
    "Qwen/Qwen2.5-14B": (14_770_033_664, None),
    "Qwen/Qwen2.5-32B": (32_763_876_352, None),
    "Qwen/Qwen2.5-72B": (72_706_203_648, 70.0),
    "meta-llama/Llama-3.1-8B": (8_030_261_248, None),
    "meta-llama/Llama-3.1-70B": (70_553_706_496, None),
    "meta-llama/Llama-3.1-405B": (405_853_388_800, None),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, None),
    "meta-llama/Llama-3.2-3B": (3_212_749_824, None),
    "meta-llama/Llama-2-7b-hf": (6_738_415_616, None),
    "meta-llama/Llama-2-13b-hf": (13_015_864_320, None),
    "meta-llama/Llama-2-70b-hf": (68_976_648_192, None),
}

# Activated parameters as the model cards state them, in billions, cut and not rounded.
PUBLISHED_ACTIVE = {
    "Qwen/Qwen3-30B-A3B": 3.3,
    "Qwen/Qwen3-235B-A22B": 22,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 35,
}

# Other publishers state one or two figures, rounded as they chose; each row names its source.
SIZES = {
    row["model"]: row
    for row in csv.DictReader((Path(__file__).parent / "data" / "published_sizes.csv").read_text().splitlines())
}


def unit_of(figure: str) -> float:
    """Return what the last digit of a published figure stands for: 0.1 for "46.7", 100 for "1.0e3"."""
    digits, _, exponent = figure.partition("e")
    return float(10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])))


def agrees(counted: float, published: str) -> bool:
    return abs(counted / 1e9 - float(published)) <= max(unit_of(published) / 2, 0.005 * float(published))


@pytest.mark.parametrize("name", SIZES)
def test_a_catalogue_model_has_the_size_that_its_publisher_rounded(name):
    model, row = load_architecture(name, Path(), None), SIZES[name]
    total, active = model.parameters, model.active_parameters
    if row["counts"] == "with_prediction":
        deeper = replace(model, layers=model.layers + 1)  # the prediction layer and its projection of two streams
        share = deeper.parameters - model.parameters + 2 * model.hidden**2
        total += share + model.embedding_parameters + model.head_parameters
    if row["total_billion"]:
        assert agrees(total, row["total_billion"]), total
    if row["active_billion"]:
        figure = row["active_billion"]  # many publishers cut the figure and do not round it
        cut = float(figure) <= active / 1e9 < float(figure) + unit_of(figure)
        assert cut or agrees(active, figure), active


def test_the_table_of_sizes_covers_forty_models_and_names_sources():
    assert len(PUBLISHED.keys() | SIZES.keys()) >= 80
    assert sum(1 for row in SIZES.values() if row["active_billion"]) >= 20
    assert all(row["source"] for row in SIZES.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_catalogue_model_has_its_published_size(name):
    model = load_architecture(name, Path(), None)
    total, without_embedding = PUBLISHED[name]
    assert model.parameters == total
    if without_embedding is not None:
        counted = (model.parameters - model.embedding_parameters - model.head_parameters) / 1e9
        digits = len(str(without_embedding).partition(".")[2])
        assert abs(counted - without_embedding) <= max(10**-digits, 0.005 * without_embedding)


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE)
def test_a_mixture_has_its_published_active_size(name):
    active = load_architecture(name, Path(), None).active_parameters / 1e9
    published = PUBLISHED_ACTIVE[name]
    assert published <= active < published + (0.1 if isinstance(published, float) else 1)


def test_every_catalogue_model_is_checked_or_is_a_variant_of_a_checked_one():
    sizes = {total for total, _ in PUBLISHED.values()}
    sizes |= {load_architecture(name, Path(), None).parameters for name in SIZES}
    for name in catalogue_models():
        assert load_architecture(name, Path(), None).parameters in sizes, name
        assert catalogue_facts(name)["source"] == f"https://huggingface.co/{name}/blob/main/config.json"
    assert PUBLISHED.keys() | SIZES.keys() <= set(catalogue_models())


def test_a_variant_differs_where_its_publisher_differs():
    base = load_architecture("Qwen/Qwen2.5-7B", Path(), None)
    instruct = load_architecture("Qwen/Qwen2.5-7B-Instruct", Path(), None)
    assert (base.max_positions, instruct.max_positions) == (131072, 32768)
    assert replace(instruct, name=base.name, max_positions=base.max_positions) == base


def test_the_catalogue_itself_refuses_an_unknown_name():
    with pytest.raises(InputError, match=r"`\.\./secret` is not in the model catalogue"):
        catalogue_facts("../secret")
