# rpegc: everything a contributor or a machine runs. `make` lists it.
#
# Budget in minutes on two cores, from nothing (CI runs check, demo, figures, validate and test; in all under 40):
#   environment 2   check 2   test 12   figures 3   validate 1
#   not part of CI: proof-native-short 4 (of it 1 to install torch), proofs 15 (installs torch), proof-deepspeed 8 (installs torch), proof-slurm 8 (installs SLURM with
#   apt-get, as root, and uses that environment), proof-native 15, demo-native 3

PYTHON ?= python3
VENV   ?= .venv
CACHE  ?= $(if $(RPEGC_CACHE),$(RPEGC_CACHE),.cache)
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The native engine's environment holds torch (CPU build, about 1 GB): kept apart, and kept between runs.
NATIVE := $(CACHE)/native

export RPEGC_CACHE := $(abspath $(CACHE))

.DEFAULT_GOAL := help
.PHONY: help demo demo-native proof-native proof-native-short test check lint types format golden figures measured-table validate exactness scaling proofs proof-deepspeed proof-slurm clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 17

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

environment: $(STAMP)  ## make the environment and install rpegc into it

demo: $(STAMP)  ## set up, compile the first example, show the plan
	$(BIN)/rpegc compile examples/grpo_qwen3_8b.yaml --output out/qwen3-8b-grpo
	$(BIN)/rpegc inspect out/qwen3-8b-grpo

$(NATIVE)/.installed: pyproject.toml constraints-native.txt
	$(PYTHON) -m venv $(NATIVE)
	$(NATIVE)/bin/python -m pip install --quiet --upgrade pip
	$(NATIVE)/bin/python -m pip install --quiet --constraint constraints-native.txt torch $(TORCH_INDEX)
	$(NATIVE)/bin/python -m pip install --quiet -c constraints.txt -c constraints-native.txt '.[native]' pytest
	$(NATIVE)/bin/python -m pip uninstall --quiet --yes rpegc  # the tree that is proven is this one, not a copy
	touch $@

demo-native: $(STAMP) $(NATIVE)/.installed  ## the native engine learns a task from nothing on two cores (3 minutes)
	$(NATIVE)/bin/python examples/native/copy_task.py out/copy-task
	$(BIN)/rpegc compile examples/native/copy.yaml --output out/native-copy
	rm -rf out/native-copy-run
	PATH="$(abspath $(NATIVE)/bin):$$PATH" PYTHONPATH=. RPEGC_RUN_DIR=out/native-copy-run bash out/native-copy/launch/run.sh
	$(BIN)/python examples/native/curve.py out/native-copy-run 0.2 0.8

proof-native: $(NATIVE)/.installed  ## the native engine's guarantees, each a test (about 12 minutes on two cores)
	PYTHONPATH=. $(NATIVE)/bin/python -m pytest -m native -p no:cacheprovider tests/native

proof-native-short: $(NATIVE)/.installed  ## the same on fewer layouts and steps (under 3 minutes)
	PYTHONPATH=. $(NATIVE)/bin/python -m pytest -m 'native and not long' -p no:cacheprovider tests/native

test: $(STAMP)  ## all tests, with verl's own configuration check (level L0)
	$(BIN)/python -m pytest

check: lint types  ## linter, format and strict types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(STAMP)  ## rewrite the golden texts; read the difference before you commit it
	$(BIN)/python -m pytest --update-golden

measured-table: $(STAMP)  ## write the errors of `rpegc validate` into README.md and docs/model.md
	$(BIN)/python benchmarks/measured_table.py

figures: $(STAMP)  ## measure what README states: search time, gap, memory, start-up, layouts a second
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/breadth.py
	$(BIN)/python benchmarks/pricing.py

validate: $(STAMP)  ## prices against published measurements; fails where a family got worse than listed
	$(BIN)/rpegc validate --expected --html out/validation.html

exactness: $(STAMP)  ## integer program against exhaustive search on 500 random pipelines with all structures
	$(BIN)/python benchmarks/exactness.py

scaling: $(STAMP)  ## the joint search on 256 to 16,384 GPUs, with its size menu, gap and memory
	$(BIN)/python benchmarks/scaling.py

proofs: $(STAMP)  ## verl's validate_config and dataclasses on every example (level L1; about 1.5 GB)
	$(BIN)/python -m pytest -m proof -p no:cacheprovider --ignore=tests/test_slurm_proof.py --ignore=tests/test_slurm_pools.py \
		--ignore=tests/test_slurm_deepspeed.py --ignore=tests/test_deepspeed_proof.py

proof-deepspeed: $(STAMP)  ## DeepSpeed and TRL train with the emitted files on CPUs (about 1.5 GB)
	$(BIN)/python -m pytest -m proof -p no:cacheprovider tests/test_deepspeed_proof.py tests/test_openrlhf_flavour.py

proof-slurm: $(STAMP)  ## a real SLURM on 127.0.0.1 runs the emitted job scripts (Debian or Ubuntu, as root)
	$(BIN)/python -m pytest -m proof -p no:cacheprovider tests/test_slurm_proof.py tests/test_slurm_pools.py \
		tests/test_slurm_deepspeed.py

clean:  ## remove what was built
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
