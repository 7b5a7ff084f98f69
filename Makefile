# Two commands are all that a machine with git, make and Python needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# tox asks each of these for its version, besides what is on PATH.
PYENV_ROOT ?= $(HOME)/.pyenv
PYTHONS := $(wildcard $(PYENV_ROOT)/versions/3.1[0-9].*/bin/python)
DISCOVER := $(if $(PYTHONS),--discover $(PYTHONS))

.PHONY: demo test simulate lint clean

demo: $(VENV)/demo
	$(BIN)/echomq-plugin demo $(ARGS)

test: $(VENV)/tox
ifdef ARGS
	$(BIN)/tox run $(DISCOVER) $(ARGS)
else
	status=0; \
	$(BIN)/tox run -m working $(DISCOVER) || status=$$?; \
	$(BIN)/tox run-parallel -m waiting --parallel 2 --parallel-no-spinner $(DISCOVER) || status=$$?; \
	exit $$status
endif

# Any number of seeded histories of the deterministic simulation; `make test` runs 2 000.
SEEDS ?= 20000
simulate: $(VENV)/tox
	$(BIN)/tox run -e simulate -- --seeds $(SEEDS)

lint: $(VENV)/tox
	$(BIN)/tox run -e lint

clean:
	rm -rf $(VENV) .tox build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(VENV)/tox: $(BIN)/python
	$(BIN)/python -m pip install --quiet 'tox>=4.22'
	@touch $@
