# Set-up and the everyday jobs. Every target makes the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests run side by side; each process keeps to one thread so that they do not fight for cores.
JOBS   ?= auto

.PHONY: demo serve docs test test-backends test-ray test-cloud lint bench fuzz lite clean help

help:
	@echo "make demo   run the main job offline on sample photographs and write a report"
	@echo "make serve  the page and the service on this machine, with the bundled model"
	@echo "make test   lint, types and the test suite"
	@echo "make test-backends  the tests of OpenVINO and ONNX Runtime, which make test skips without them"
	@echo "make test-ray  the tests on Ray, which make test skips without it"
	@echo "make test-cloud  the tests on S3, Google Cloud Storage and Azure, the last two of which make test skips; needs npm"
	@echo "make docs   the documentation site, built offline into site/"
	@echo "make lint   ruff and mypy only"
	@echo "make bench  performance figures, each a ratio to a named peer"
	@echo "make fuzz   kill, damage and fuzz what is read and written, longer than the tests do, and count"
	@echo "make lite   train the bundled model from scratch"
	@echo "make clean  remove the virtual environment and build output"

# torch comes first and alone: resolved together with the rest, its CPU pin could lose to a newer build.
$(BIN)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) torch
	$(PIP) -e '.[demo]'
	@touch $@

$(BIN)/.dev: $(BIN)/.base
	$(PIP) -e '.[demo,dev,docs]'
	@command -v chromium >/dev/null || apt-get install -y -qq chromium >/dev/null 2>&1 || \
		echo "chromium is not installed: tests of pages in a browser are skipped"
	@touch $@

demo: $(BIN)/.base
	$(BIN)/deltaenergy demo

$(BIN)/.serve: $(BIN)/.base
	$(PIP) -e '.[demo,serve]'
	@touch $@

serve: $(BIN)/.serve
	$(BIN)/deltaenergy serve

$(BIN)/.docs: $(BIN)/.base
	$(PIP) -e '.[demo,docs]'
	@touch $@

docs: $(BIN)/.docs
	$(BIN)/python tools/site/make.py

test: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS)

# A good 300 MB more than the other tests need.
$(BIN)/.backends: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,onnx,openvino]'
	@touch $@

test-backends: $(BIN)/.backends
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/models/backends tests/cli/test_backends.py tests/evaluation/test_agreement.py

# Ray is some 240 MB.
$(BIN)/.ray: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,ray]'
	@touch $@

test-ray: $(BIN)/.ray
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/scale

# Azurite and what it needs are some 370 npm packages; they stay below the virtual environment.
$(BIN)/.cloud: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,cloud]' gcp-storage-emulator
	npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/azurite azurite
	@touch $@

test-cloud: $(BIN)/.cloud
	OMP_NUM_THREADS=1 $(BIN)/pytest -q $(wildcard tests/data/test_remote*.py)

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BIN)/.dev
	@for script in $$(grep -l __main__ bench/*.py); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

fuzz: $(BIN)/.dev
	$(BIN)/python -W ignore -m tests.faults $(SEED)
	$(BIN)/python -W ignore -m tests.data.campaigns $(SEED)
	$(BIN)/python -W ignore -m tests.scale.kills 20 $(SEED)
	@if $(BIN)/python -c 'import ray' 2>/dev/null; then $(BIN)/python -W ignore -m tests.scale.ray_kills 20 $(SEED); fi

lite: $(BIN)/.dev
	$(PIP) --no-deps -r training/lite/requirements.txt
	$(BIN)/python -m training.lite $(if $(PICTURES),--pictures "$(PICTURES)")

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis deltaenergy-demo
