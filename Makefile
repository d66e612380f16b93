PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest

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

$(VENV)/.ecosystem: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,bench,test,ecosystem]'
	@touch $@

.PHONY: test
test: $(VENV)/.ecosystem  ## lint, check the types, run all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2

# of what both files name, the first is taken
$(OLDEST)/.installed: setup.cfg pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	awk -F== '!seen[$$1]++' constraints-oldest.txt constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[train,bench,test]'
	@touch $@

.PHONY: test-oldest
test-oldest: $(OLDEST)/.installed  ## run all tests with the oldest transformers
	$(OLDEST)/bin/pytest --numprocesses 2

.PHONY: clean
clean:  ## remove the environment and the caches
	rm -rf $(VENV) $(OLDEST) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
