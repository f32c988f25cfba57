# make demo | quick | test | lint | docs | performance | bench | clean. Needs Python 3.11 or later and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: demo quick test lint format docs docs-output performance bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[plot,test,fast,docs]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m wdro_model demo --output demo-output

quick: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

docs-output: $(VENV)/.installed
	$(BIN)/python tests/package/pages.py

performance: $(VENV)/.installed
	$(BIN)/python benchmarks performance

bench: $(VENV)/.installed
	$(BIN)/python benchmarks all

clean:
	rm -rf $(VENV) site .gallery demo-output reproduction-output build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
