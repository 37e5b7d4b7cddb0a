# `make demo` and `make test` need only Python >= 3.11, make and git.
#   make PYTHON=/path/to/python3.12 test     use another interpreter
#   make VENV=/somewhere/else test           put the environment elsewhere
#   make test PYTEST="-k restart -x"         options for pytest
#   make lab LAB="--no-browser --port 9999"  options for JupyterLab

# The first one that runs and is new enough is used. A name on PATH may not run, because version managers install stubs.
CANDIDATES = python3 python3.13 python3.12 python3.11 python3.14 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; exit; }; done)
VENV ?= .venv
PYTEST ?=
LAB ?=
CELLS ?= 600
LEAVINGS ?= 100
SEED ?= $(shell date +%s)

# tests/support/workers.py says how many workers there are, and which tests never run beside each other.
WORKERS = -n auto
TIMINGS = build/timings.jsonl
TESTED = build/tested.json

BIN = $(VENV)/bin
RUN = $(BIN)/python -m
PINS = .ci/constraints.txt
# What is installed: for users, for the lessons, for developers. Each builds on the first, so no order of targets installs anything twice.
READY_LAB = $(VENV)/.ready-lab
READY_LESSONS = $(VENV)/.ready-lessons
READY = $(VENV)/.ready
PEERS = .bench/.ready

.DEFAULT_GOAL = help
.PHONY: help venv demo lab test test-all quick timings mutation check format docs tested picture gallery soak bench other-python pins clean

help: ## say what there is
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

venv: $(READY) ## make the environment alone, for developers

# install EXTRA: with uv, which takes a sixth of pip's time and is brought by pip; with pip if uv cannot be had or fails, or if the user's
# pip has another index than PyPI, which uv would not know. Both use the same pins.
INSTALLED = --quiet --constraint $(PINS) --editable '.[$(1)]'
define install
@uv=$$(command -v uv || echo "$(BIN)/uv"); \
if [ ! -x "$$uv" ] && ! $(RUN) pip config list | grep -E '[.]index.url=|no.index=' >/dev/null; then \
  $(RUN) pip install --quiet --disable-pip-version-check uv || true; \
fi; \
if [ ! -x "$$uv" ] || ! "$$uv" pip install --python "$(BIN)/python" $(INSTALLED); then \
  $(RUN) pip --version >/dev/null && $(RUN) pip install --disable-pip-version-check $(INSTALLED); \
fi
@touch $@
endef

# The environment is made anew, which also removes the marks of the other two.
$(READY_LAB): pyproject.toml $(PINS)
	@test -n "$(PYTHON)" || { echo "mhnb needs Python 3.11 or newer; found none. Say make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mhnb needs Python 3.11 or newer; $(PYTHON) is not"; exit 1; }
	@echo "environment $(VENV) from $$("$(PYTHON)" --version)"
	@if command -v uv >/dev/null 2>&1; then \
	  UV_VENV_CLEAR=1 uv venv --quiet --python "$$("$(PYTHON)" -c 'import sys; print(sys.executable)')" "$(VENV)"; \
	else \
	  "$(PYTHON)" -m venv --clear "$(VENV)"; \
	fi
	$(call install,lab)

$(READY_LESSONS): $(READY_LAB)
	$(call install,lessons)

$(READY): $(READY_LAB)
	$(call install,dev)

demo: $(READY_LAB) ## run the tour on 4 simulated hosts, print each rank's part, write the page
	$(RUN) mhnb demo

lab: $(READY_LESSONS) ## open the tour in JupyterLab; LAB="..." are options for it
	$(RUN) mhnb lab $(LAB)

test: $(READY) ## the promises, on real ranks of this machine: run it before you commit
	$(RUN) pytest $(WORKERS) -m "not (test_all or soak)" $(PYTEST)

test-all: $(READY) other-python ## what `make test` leaves: real hosts, Slurm, MPI, the browser, the lessons, the other Python
	$(RUN) pytest $(WORKERS) -m "test_all and not soak" $(PYTEST)

quick: $(READY) ## the fast tests, which start no cluster, and those that read the source: run it while you write
	$(RUN) pytest $(WORKERS) -m "not (ranks or slow or soak)" mhnb tests/unit tests/policy tests/support $(PYTEST)

timings: $(READY) ## run `make test`, and print where its time goes: by kind of cost, fixture, folder, file and test
	@mkdir -p build && rm -f $(TIMINGS)
	-$(RUN) pytest $(WORKERS) -m "not (test_all or soak)" --timings $(TIMINGS) $(PYTEST)
	$(RUN) tests.support.timings $(TIMINGS)

mutation: $(READY) ## make 60 small faults, one at a time, and count those that a test catches (SEED chooses them)
	$(RUN) tests.bench.mutation --seed $(SEED)

check: $(READY) ## style, types, layers, words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(RUN) pytest -q tests/policy/test_layers.py tests/policy/test_style.py tests/policy/test_words.py

format: $(READY) ## let ruff set the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY) ## build the documentation site into build/docs; MHNB_REPOSITORY=address links to files of the repository
	$(BIN)/python docs/build.py

tested: $(READY) ## write the table of docs/tested.md from what passed: in .ci/run, or in make test and test-all with MHNB_TESTED=build/tested.json
	$(RUN) tests.support.tested $(TESTED)

picture: $(READY) ## take the pictures of README and of the documentation from the running product
	MHNB_WRITE_PICTURES=1 $(RUN) pytest tests/system/browser/test_docs_pictures.py

gallery: $(READY) ## take a picture of every view, light and dark, narrow and wide, at 1 to 64 ranks, into build/gallery
	MHNB_GALLERY=build/gallery $(RUN) pytest tests/system/browser/test_view_gallery.py $(PYTEST)

soak: $(READY) ## run the cases that `make test` and `make test-all` leave out, many hostile cells on real ranks, and many ways out of the debugger; CELLS, SEED and LEAVINGS choose them
	$(RUN) pytest -m soak $(PYTEST)
	MHNB_HOSTILE_CELLS=$(CELLS) MHNB_HOSTILE_SEED=$(SEED) $(RUN) pytest tests/integration/ranks/test_hostile.py -o faulthandler_timeout=0 $(PYTEST)
	MHNB_DEBUGGER_LEAVINGS=$(LEAVINGS) $(RUN) pytest tests/integration/notebook/test_debugger.py -o faulthandler_timeout=0 $(PYTEST)

bench: $(READY) $(PEERS) ## measure beside a plain kernel, %%px, jupyter-distributed, bare processes and other drawings
	$(RUN) tests.bench
	$(RUN) tests.bench.guard
	$(RUN) tests.bench.life
	$(RUN) tests.bench.debugger
	$(RUN) tests.bench.flight
	$(RUN) tests.bench.memory
	$(RUN) tests.bench.metrics
	$(RUN) tests.bench.collectives
	$(RUN) tests.bench.sharding
	$(RUN) tests.bench.fit
	$(RUN) tests.bench.outputs

# The compared projects are installed beside the environment, never into it.
$(PEERS): tests/bench/requirements.txt
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python "$(BIN)/python" --target .bench --no-deps --requirements $<; \
	else \
	  $(RUN) pip install --quiet --disable-pip-version-check --target .bench --upgrade --no-deps --requirement $<; \
	fi
	@touch $@

# The other version of Python and JAX: 3.12+ if this is 3.11, and 3.11 if this is 3.12+. If there is none, print that and go on.
other-python: $(READY) ## prepare the environment of the other Python, where there is one
	@$(RUN) tests.support.other_python

pins: ## write .ci/constraints.txt anew (needs uv)
	.ci/pin

clean: ## remove everything that make made
	rm -rf "$(VENV)" .venv-other build dist mhnb-tour.html .bench .ci/mpich .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mhnb tests profiles -name __pycache__ -type d -prune -exec rm -rf {} +
