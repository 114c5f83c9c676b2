# Everything runs in .venv, which the first command makes. Nothing else is needed but Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help setup demo test quality format bench scale soak claims-tables claims-smoke clean

help:            ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## make .venv with the pinned dependencies and the package

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "relatum needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv; the first time brings about 6 GB and takes a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,export,track]"
	@touch $@

demo: setup      ## train three small models on a generated long-tailed world and compare them
	$(BIN)/relatum demo

test: setup      ## run the whole fast suite; uses real data where RELATUM_DATA names its folder
	$(BIN)/python -m pytest -n 2 --dist loadfile

quality: setup   ## lint, format check, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup    ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup     ## measure speed, as ratios in one run
	$(BIN)/relatum bench cifar100-lt-100/balanced-softmax $(if $(RELATUM_DATA),--data.root $(RELATUM_DATA)) --data.batch-size 128 --rounds 5 --steps 8
	$(BIN)/python benchmarks/relation_cost.py

scale: setup     ## time and memory of lists of up to two million images; fails if a bar is missed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scale.py

soak: setup      ## 3,000 steps twice, watching the memory; fails if it grows
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak.py

claims-tables: setup  ## make the result tables and figures anew from the rows of benchmarks/claims
	$(BIN)/python benchmarks/claims/tables.py

claims-smoke: setup   ## train the smallest variant of every claim; fails if an effect has disappeared; needs RELATUM_DATA
	$(BIN)/python benchmarks/claims/smoke.py

clean:           ## remove .venv and caches; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
