# Two commands on a machine that has Python (3.11 to 3.14), git and make:
#
#   make demo    trains a small model under four recipes and writes results/demo/report.html
#   make test    lints, checks types and tests
#
# and one more on a machine with an NVIDIA GPU: `make gpu` shows that it gives the CPU's bits and trains there.
#
# Both build .venv when it is missing or when pyproject.toml has changed, and else go straight to work.
# No compiler is needed.

# Candidates in order of preference; `make PYTHON=python3.12` narrows the choice to one.
PYTHON ?= python3 python3.13 python3.12 python3.14 python3.11 python

# A stamp says that an installation ended well. Its name holds the folder, because a moved or copied .venv still
# points at the old one.
HERE := $(shell pwd -P | cksum | cut -d' ' -f1)
VENV := .venv/stamp-$(HERE)-venv
BASE := .venv/stamp-$(HERE)-base
DEV := .venv/stamp-$(HERE)-dev

PIP := .venv/bin/python -m pip install --disable-pip-version-check

# Tests run on all cores (tests/conftest.py says how many processes), a module's tests in one process and in their order:
# what they share is made once, and a record has one writer. `make test SPREAD=` uses one process.
SPREAD ?= -n auto --dist loadfile

# A candidate must run (a shim may not), be a version that torch has builds for, and be able to make an environment
# with pip (some systems ship these parts apart).
FIT := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))

LAB := .venv/stamp-$(HERE)-lab

# JupyterLab refuses to serve root unless told; in a container there is often nobody else. Its token guards it as ever.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help demo test notebooks exhaustive browser gpu clean
.NOTPARALLEL:

help:
	@echo 'make demo        train a small model under four recipes; writes results/demo/report.html'
	@echo 'make test        lint, check types, then run the tests'
	@echo 'make notebooks   open the notebooks in JupyterLab'
	@echo 'make exhaustive  run every test, also the sweeps that take minutes'
	@echo 'make browser     drive the notebooks and the explorer page in a headless Chromium'
	@echo 'make gpu         compare a GPU with the CPU bit for bit, then train the demo on it'
	@echo 'make clean       remove .venv and all caches; results stay'

demo: $(BASE)
	.venv/bin/fourbit demo

test: $(DEV)
	.venv/bin/python -m ruff check
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m mypy
	.venv/bin/python -m pytest -q --durations=10 $(SPREAD)

notebooks: $(LAB)
	.venv/bin/jupyter lab $(AS_ROOT) notebooks/01_formats.ipynb

exhaustive: $(DEV)
	.venv/bin/python -m pytest -q --durations=10 $(SPREAD) -m 'not browser'

browser: $(DEV)
	$(PIP) -e '.[dev,browser]'
	.venv/bin/python -m pytest -q -m browser

gpu: $(DEV)
	.venv/bin/fourbit validate --device cuda --out results/validate.json
	.venv/bin/fourbit validate --device cuda --compiled --out results/compiled.json
	.venv/bin/fourbit validate --device cuda --conversions --out results/cvt.json
	.venv/bin/python -m pytest -q -k gpu
	.venv/bin/fourbit demo --device cuda --out results/demo_gpu

clean:
	rm -rf .venv build dist fourbit.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV):
	@for python in $(PYTHON); do \
		if "$$python" -c '$(FIT)' >/dev/null 2>&1; then \
			echo "Making .venv with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
			"$$python" -m venv .venv && touch $@; exit; \
		fi; \
	done; \
	echo 'make: none of ($(PYTHON)) is a Python 3.11 to 3.14 with its venv and ensurepip modules;' \
		'install one, or name it: make PYTHON=python3.12' >&2; exit 1

$(BASE): $(VENV) pyproject.toml
	@echo 'Installing fourbit and what it needs into .venv; torch is large, and this happens once'
	$(PIP) -e .
	@touch $@

$(DEV): $(VENV) pyproject.toml
	@echo 'Installing fourbit, what it needs and the test tools into .venv; torch is large, and this happens once'
	$(PIP) -e '.[dev]'
	@touch $(BASE) $@

$(LAB): $(VENV) pyproject.toml
	@echo 'Installing fourbit, what it needs and JupyterLab into .venv; this happens once'
	$(PIP) -e '.[notebooks]'
	@touch $(BASE) $@
