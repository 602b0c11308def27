# Set-up and the everyday jobs. Every target makes the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# The lowest versions of the dependencies, away from the others.
LOWEST := .venv-lowest
# How many groups of tests run side by side; without a number, one for each core.
JOBS   ?=

.PHONY: demo serve docs check test test-all test-lowest test-backends test-ray test-cloud lint bench fuzz mutants lite clean help

help:
	@echo "make demo   run the main job offline on sample photographs and write a report"
	@echo "make serve  the page and the service on this machine, with the bundled model"
	@echo "make check  lint, types and the tests of what changed since the branch main, in a minute"
	@echo "make test   lint, types and the test suite"
	@echo "make test-all  the test suite with its campaigns: every kill, every hostile call, every page"
	@echo "make test-lowest  tests on the lowest versions of the dependencies that pyproject.toml allows"
	@echo "make test-backends  the tests of OpenVINO and ONNX Runtime, which make test skips without them"
	@echo "make test-ray  the tests on Ray, which make test skips without it"
	@echo "make test-cloud  the tests on S3, Google Cloud Storage and Azure, the last of which make test skips; needs npm"
	@echo "make docs   the documentation site, built offline into site/"
	@echo "make lint   ruff and mypy only"
	@echo "make bench  performance figures, each a ratio to a named peer"
	@echo "make fuzz   kill, damage and fuzz what is read and written, longer than the tests do, and count"
	@echo "make mutants  break the package in listed places, one at a time, and see whether its tests notice"
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

PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q
# The C library reads, as a process starts, how much unused memory it may keep.
SUITE  := MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=4000000 MALLOC_TRIM_THRESHOLD_=32000000 $(BIN)/python tools/suite.py \
	$(if $(JOBS),--jobs $(JOBS))
ALL    := -m "" --hypothesis-profile=campaign

check: $(BIN)/.dev
	$(BIN)/python tools/check.py

test: $(BIN)/.dev
	$(SUITE)

# With what other targets installed: make test-backends test-ray test-cloud
test-all: $(BIN)/.dev
	$(SUITE) --all

# Left out are three tests that write, with these old versions, files which these cannot write.
$(LOWEST)/.made: pyproject.toml constraints.txt tools/lowest.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(PYTHON) tools/lowest.py demo plot > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r $(LOWEST)/lowest.txt pytest hypothesis
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

test-lowest: $(LOWEST)/.made
	OMP_NUM_THREADS=1 $(LOWEST)/bin/pytest -q tests/test_package.py tests/detector/test_detector.py tests/detector/test_hub.py \
		tests/core/test_progress.py tests/test_demo.py tests/files tests/models/towers/test_clip.py tests/models/test_lite.py \
		tests/models/loading/test_load.py tests/models/loading/test_tokenizing.py tests/models/loading/test_open_clip.py \
		tests/models/towers/test_prompts.py tests/cli/test_help.py tests/detector/test_verdict_files.py tests/cli/test_score.py \
		tests/data/test_decode.py tests/test_source.py tests/data/formats/test_parquet.py tests/store/test_store.py \
		tests/data/formats/test_tar.py tests/data/remote/test_client.py tests/scores/test_logits.py \
		-k "not sixteen_bit_grey and not (every_way_to_write_pictures and view)"

# A good 300 MB more than the other tests need.
$(BIN)/.backends: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,onnx,openvino]'
	@touch $@

test-backends: $(BIN)/.backends
	$(PYTEST) $(ALL) tests/models/backends tests/cli/test_backends.py tests/evaluation/test_backend_check.py

# Ray is some 240 MB.
$(BIN)/.ray: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,ray]'
	@touch $@

test-ray: $(BIN)/.ray
	$(PYTEST) $(ALL) tests/scale

# Azurite and what it needs are some 370 npm packages; they stay below the virtual environment.
$(BIN)/.cloud: $(BIN)/.dev
	$(PIP) -e '.[demo,dev,aws,cloud]' azure-storage-blob
	npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/azurite azurite
	@touch $@

test-cloud: $(BIN)/.cloud
	$(PYTEST) $(ALL) tests/data/remote tests/store/test_remote_folder.py

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BIN)/.dev
	@for script in $$(grep -l __main__ bench/*.py); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

fuzz: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.faults $(SEED)
	$(BIN)/python -W ignore -m tests.store.campaigns $(SEED)
	$(BIN)/python -W ignore -m tests.scale.kills 20 $(SEED)
	@if $(BIN)/python -c 'import ray' 2>/dev/null; then $(BIN)/python -W ignore -m tests.scale.ray_kills 20 $(SEED); fi

mutants: $(BIN)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.mutants

lite: $(BIN)/.dev
	$(PIP) --no-deps -r training/lite/requirements.txt
	$(BIN)/python -m training.lite $(if $(PICTURES),--pictures "$(PICTURES)")

clean:
	rm -rf $(VENV) $(LOWEST) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis deltaenergy-demo
