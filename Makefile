# Two commands do everything: `make reproduce` and `make test`. Both install what they need into
# .venv, once, and are safe to repeat.

PYTHON ?= python3
# For example --extra-index-url with the index of PyTorch's CPU builds, to save the CUDA libraries.
PIP_TORCH_ARGS ?=
# Another interpreter beside the first: make test PYTHON=python3.13 VENV=.venv-3.13
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WITH_EXTRAS := $(VENV)/.installed-extras
# Only what is imported is compiled, at its first import: that saves half of the installation.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE ?= 1
# As nothing is compiled at installation, what is imported must be kept: many containers set this,
# and every process would compile PyTorch and transformers again, for ten seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install reproduce smoke lint docs test fast-variant test-variants test-scheduled trials resolve wheel-smoke clean

help:
	@echo "make reproduce       install, train small models, write one page that compares them (9 to 15 minutes)"
	@echo "make test            install, lint, check types, run the tests and the smoke run"
	@echo "make docs            the documentation site, in runs/docs"
	@echo "make test-variants   the tests of every push with the kernels of other CPUs"
	@echo "make test-scheduled  the slow tests: compiled models, all trials, whole products of options"
	@echo "make trials          damaged files, kills, hostile input: counts go to docs/records/trials.json"
	@echo "make resolve         resolve constraints.txt from the public index, 3 platforms x 3 Pythons"
	@echo "make wheel-smoke     build the wheel and make the smoke run from it in an empty environment"
	@echo "make clean           remove .venv and what the other commands made; runs/ stays"

install: $(WITH_EXTRAS)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	@echo "Installing into $(VENV): 1 of 2, PyTorch (most of the time; minutes on a slow line)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) $(PIP_TORCH_ARGS) torch
	@echo "Installing into $(VENV): 2 of 2, diffattn and what it needs (half a minute)"
	@$(PIP_INSTALL) -e '.[lab]'
	@touch $(INSTALLED)

$(WITH_EXTRAS): $(INSTALLED)
	@echo "Installing into $(VENV): the extras, for tests and documents (a minute)"
	@$(PIP_INSTALL) -e '.[lab,test,data,triton,eval,track,docs,onnx]'
	@touch $(WITH_EXTRAS)

reproduce: $(INSTALLED)
	@$(BIN)/diffattn reproduce --out runs/first

smoke: $(INSTALLED)
	rm -rf runs/smoke
	$(BIN)/diffattn reproduce text --scale smoke --out runs/smoke

lint: $(WITH_EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors: a broken reference or docstring fails the push.
docs: $(WITH_EXTRAS)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs runs/docs

test: $(WITH_EXTRAS)
	$(MAKE) --no-print-directory -j2 lint docs
	$(BIN)/python -m pytest -m "not scheduled" -n 2 --dist worksteal
	$(MAKE) --no-print-directory -j2 smoke fast-variant

fast-variant: $(WITH_EXTRAS)
	$(BIN)/python .ci/variants --fast

# The push tier with the kernels of other CPUs, one after the other: 5 minutes each.
test-variants: $(WITH_EXTRAS)
	$(BIN)/python .ci/variants

test-scheduled: $(WITH_EXTRAS)
	$(BIN)/python -m pytest -m scheduled

trials: $(WITH_EXTRAS)
	DIFFATTN_TRIALS=docs/records/trials.json $(BIN)/python -m pytest -m "scheduled or not scheduled" tests/trials

resolve: $(WITH_EXTRAS)
	$(BIN)/python -m pytest --noconftest -q -rs -m scheduled -k test_constraints tests/install/test_resolution.py

wheel-smoke: $(WITH_EXTRAS)
	PIP_TORCH_ARGS='$(PIP_TORCH_ARGS)' $(BIN)/python -m pytest -m scheduled tests/install/test_wheel.py

clean:
	rm -rf $(VENV) runs/docs runs/smoke
	@! test -d runs || echo "Kept: runs/ with your trained models. To delete it: rm -r runs"
