PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# a second call finds the stamp newer than what it was made from
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,bench,test]'
	@touch $@

.PHONY: install
install: $(VENV)/.installed  ## make the environment in .venv

.PHONY: demo
demo: $(VENV)/.installed  ## train two small language models and two small BERTs, compare them, try them
	$(BIN)/sublayers demo

.PHONY: test
test: $(VENV)/.installed  ## lint, check the types, run all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2

.PHONY: clean
clean:  ## remove the environment and the caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
