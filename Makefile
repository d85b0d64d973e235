# `make demo` and `make test` need Python 3.11 or later with venv, and nothing else: they set up .venv themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test hard lint bench clean

demo: $(VENV)/.demo
	$(BIN)/unstride run --check

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

# Everything that could break it, counted; at most 30 minutes on two cores. Writes the score card of README.md.
hard: $(VENV)/.hard
	$(BIN)/python -m tests.hard

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Beside torch, OpenVINO and onnxruntime on 60 representative layers, under ten minutes; build/bench.svg is the picture.
bench: $(VENV)/.bench
	$(BIN)/python -m unstride.bench --save build/bench.jsonl --svg build/bench.svg

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per purpose: installed again only when the list of requirements changes.
$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli]'
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli,test]'
	touch $@

$(VENV)/.hard: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli,test,hard]'
	touch $@

$(VENV)/.lint: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli,test,lint]'
	touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli,bench]'
	touch $@
