# Every recipe does its own set-up, on a machine that has Python 3.11 (or newer) and g++ only.
#   make quickstart    data -> train -> publish -> serve -> predict -> load test -> live update, on real clicks   (KEEP=1 leaves the server running)
#   make test          the tests, without the slow ones: about half an hour
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
JOBS   ?= 2
# Tests wait for servers and for time to pass a third of the time: one process more than there are cores.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
SECONDS ?= 600
FUZZ_SECONDS ?= 600
FUZZ_INPUTS ?= 1000000
NATIVE := $(shell find storage/native serving/native benchmarks/native cuda -name '*.cpp' -o -name '*.h' -o -name '*.cuh' -o -name 'CMakeLists.txt' | grep -v '/\.')
SAMPLE ?= 40
OUTAGE ?= 60
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
NGHTTP2 := $(VENV)/nghttp2/.ready
# What clang-format keeps in shape.
FORMATTED := $(shell find storage/native serving/native benchmarks cuda tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
FUZZERS := $(VENV)/.fuzzers
TIDY    := $(VENV)/.tidy
# A GPU's torch and CuPy are those of this Python, and what else is needed is put beside them into build/gpu-venv.
GPU_BASE   ?= $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON))
GPU_PYTHON ?= 3.12
GPU_ARCH   ?= sm_90
# Files begin in the order of tests/conftest.py, and not those with the most tests first.
PYTEST := $(PY) -m pytest --numprocesses $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
EXAMPLES ?= full
RUNS   ?= 20
TESTS  ?= tests
PACKAGES := emberline serving storage trainer loadtest benchmarks tests

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export EMBERLINE_NGHTTP2 := $(abspath $(VENV)/nghttp2/usr)

.PHONY: help setup quickstart docs docs-serve test test-all test-python test-cpp flaky cuda-check lint format type tidy sanitize sanitize-memory sanitize-threads storm drill tutorial soak soak-publishing soak-gpu soak-hbm soak-ranks fuzz fuzz-cpp bench gpu-wheels test-gpu bench-gpu rehearse-gpu clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY)  ## a virtual environment in .venv with everything that is needed, and the native core built

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# gRPC is served natively with nghttp2. Where that is not installed, Debian's package is unpacked beside; elsewhere gRPC
# is served by Python.
$(NGHTTP2): $(VENV)/bin/python
	@mkdir -p $(@D)
	@echo '#include <nghttp2/nghttp2.h>' | $(CXX) -E -x c++ - > /dev/null 2>&1 || ( cd $(@D) && \
	  packages="libnghttp2-dev libnghttp2-14" && \
	  ( apt-get download -qq $$packages || ( apt-get update -qq && apt-get download -qq $$packages ) ) && \
	  for each in *.deb; do dpkg -x $$each . || exit 1; done ) > /dev/null 2>&1 || \
	  echo "nghttp2 is not here (Debian and Ubuntu: libnghttp2-dev), so gRPC will be served by Python"
	@touch $@

# What the C++ tests need: they are built while the rest is installed.
$(TOOLS): $(NGHTTP2) constraints.txt
	$(PY) -m pip install --quiet --constraint constraints.txt cmake ninja
	@touch $@

$(READY): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE) | $(TOOLS)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

quickstart: $(READY)  ## the whole walkthrough on MovieLens, with a table at the end; KEEP=1 leaves the server running
	$(PY) -m examples.quickstart --work build/quickstart $(if $(KEEP),--keep)

docs: $(READY)  ## the documentation site into build/site; a link or an anchor that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open build/site/index.html"

docs-serve: docs  ## the same, and shows it on port 8080 of this machine
	$(PY) -m http.server 8080 --bind 127.0.0.1 --directory build/site

test: $(READY)  ## what is not slow: kernels for one architecture, C++, Python; about half an hour on two cores
	$(PY) -m tests.kernels.check --gpus $(GPU_ARCH)
	$(call cpp_tests,plain,)
	$(PYTEST) -m 'not slow' --hypothesis-profile quick

test-all: cuda-check test-cpp sanitize test-python  ## every test: kernels for all architectures, C++, sanitizers, Python

test-python: $(READY)  ## all Python tests, a file a process, TEST_JOBS at a time; EXAMPLES=quick for fewer examples of a property, WITHOUT=long for the shorter ones
	$(PYTEST) --hypothesis-profile $(EXAMPLES) $(if $(WITHOUT),-m 'not $(WITHOUT)')

flaky: $(READY)  ## the Python tests RUNS=20 times beside busy loops: which fail, which are slowest; TESTS=tests/e2e for a part
	$(PY) -m tests.repo.flaky --runs $(RUNS) $(TESTS)

test-cpp: $(TOOLS)  ## the C++ tests alone
	$(call cpp_tests,plain,)

cuda-check: $(READY)  ## compile the kernels of cuda/ for every GPU: warnings, registers, spills; needs no GPU
	$(PY) -m tests.kernels.check

lint: $(READY)  ## ruff, formatting of Python and C++, spelling, import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run -Werror $(FORMATTED)
	$(VENV)/bin/codespell
	$(VENV)/bin/lint-imports

format: $(READY)  ## format the Python, C++ and CUDA sources
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(FORMATTED)

type: $(READY)  ## mypy --strict
	$(PY) -m mypy

$(TIDY): $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt clang-tidy
	@touch $@

tidy: $(TIDY)  ## clang-tidy over the C++ core
	$(VENV)/bin/cmake -S . -B build/tidy -G Ninja -DEMBERLINE_CCACHE=OFF -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) -DEMBERLINE_PYTHON=OFF > /dev/null
	$(PY) $(VENV)/bin/run-clang-tidy.py -p build/tidy -clang-tidy-binary $(VENV)/bin/clang-tidy -j $(JOBS) -quiet -hide-progress -warnings-as-errors='*'

sanitize: sanitize-memory sanitize-threads  ## the C++ tests under ASan + UBSan, then under TSan

sanitize-memory: $(TOOLS)
	$(call cpp_tests,asan,address$(comma)undefined)

sanitize-threads: $(TOOLS)
	$(call cpp_tests,tsan,thread)

storm: $(READY)  ## restarts with a fault in one file call each, SAMPLE=40 of each world; faults of a fleet behind HAProxy, and of a stream, whose broker and disk are gone for OUTAGE=60
	$(PY) -m tests.faults.storm --sample $(SAMPLE) --jobs $(JOBS)
	$(PY) -m tests.faults.fleet faults rollback storm --trials 2 --outage 5
	$(PY) -m tests.faults.stream --outage $(OUTAGE) --full $(OUTAGE)

drill: $(READY)  ## seven faults of a night, one after the other: is the cause named by the alert, status, console and runbook?
	$(PY) -m tests.faults.night

tutorial:  ## docs/tutorial.md word for word in a fresh clone, home and environment: ten minutes and more, most of them for its `make setup`
	$(PYTHON) -m tests.external.fresh_tutorial

soak: $(READY)  ## a store under readers, deltas, rollbacks, budget changes and compactions for ten minutes; SECONDS=60 for less
	$(PY) -m tests.soak.store --seconds $(SECONDS)

soak-publishing: $(READY)  ## 8,640 deltas and 200 versions, published and served one after the other: does anything grow?
	$(PY) -m tests.soak.publishing --svg build/growth.svg

soak-ranks: $(READY)  ## 4 ranks follow a folder, and a server their deltas, while all are killed, for ten minutes; SECONDS=60 for less, RANKS=2
	$(PY) -m tests.soak.ranks --seconds $(SECONDS) --ranks $(or $(RANKS),4)

soak-gpu: $(READY)  ## sessions on a simulated GPU under deltas, rollbacks and resizing for ten minutes; SECONDS=60 for less, GPU=1 for a real one
	$(PY) -m tests.soak.gpu --seconds $(SECONDS) $(if $(GPU),--gpu)

soak-hbm: $(READY)  ## a store with a cache on a simulated GPU under everything at once for ten minutes; SECONDS=60 for less, GPU=1 for a real one
	$(PY) -m tests.soak.hbm --seconds $(SECONDS) $(if $(GPU),--gpu)

$(FUZZERS): $(READY)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	@touch $@

fuzz: $(FUZZERS)  ## every fuzzer, ten minutes each; FUZZ_SECONDS=60 for less
	@code=0; for name in http native grpc decoders openapi; do echo "== $$name"; $(PY) -m tests.fuzz.$$name --seconds $(FUZZ_SECONDS) || code=1; done; exit $$code

fuzz-cpp: $(TOOLS)  ## a million inputs for the native HTTP server under ASan and UBSan, and a million under TSan; FUZZ_INPUTS=10000 for less
	$(call cpp_fuzz,asan,address$(comma)undefined)
	$(call cpp_fuzz,tsan,thread)

bench: $(READY)  ## every benchmark, in its quick form
	@for name in parity session_memory synthetic_tiers live_updates random_kills starts; do echo "== $$name"; $(PY) -m benchmarks.$$name --quick || exit 1; done
	@mkdir -p build && $(PY) -m benchmarks.all_store --quick --out build/store-quick.txt; code=$$?; cat build/store-quick.txt; exit $$code

gpu-wheels: $(READY)  ## into build/gpu-wheels what a machine with a GPU and no network lacks, built; GPU_PYTHON=3.12 GPU_ARCH=sm_90
	$(PY) tests/gpu/wheels.py --python $(GPU_PYTHON) --arch $(GPU_ARCH)

test-gpu:  ## on a machine with a GPU: does it live, and is it right? at most nine minutes; results in build/gpu
	$(GPU_BASE) tests/gpu/hour.py --part 1

bench-gpu:  ## on a machine with a GPU: lookups and tiers (nine minutes), then sessions (nine minutes); results in build/gpu
	@code=0; for part in 2 3; do $(GPU_BASE) tests/gpu/hour.py --part $$part || code=1; done; exit $$code

rehearse-gpu: $(READY)  ## the three parts without a GPU, at toy sizes, on a Python that has torch; GPU_BASE=...
	@code=0; for part in 1 2 3; do $(GPU_BASE) tests/gpu/hour.py --part $$part --rehearse --out build/gpu-rehearsal || code=1; done; exit $$code

clean:  ## remove what was built (not .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	find storage -name '*.so' -delete

comma := ,
# $(1) name of the build folder, $(2) sanitizers; no Python involved
define cpp_tests
	$(VENV)/bin/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	  -DEMBERLINE_PYTHON=OFF -DEMBERLINE_TESTS=ON -DEMBERLINE_SANITIZE=$(2) > /dev/null
	$(VENV)/bin/cmake --build build/$(1) --parallel $(JOBS)
	$(VENV)/bin/ctest --test-dir build/$(1) --parallel $(JOBS) --output-on-failure
endef
# $(1) name of the build folder, $(2) sanitizers
define cpp_fuzz
	$(VENV)/bin/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	  -DEMBERLINE_PYTHON=OFF -DEMBERLINE_TESTS=ON -DEMBERLINE_SANITIZE=$(2) > /dev/null
	$(VENV)/bin/cmake --build build/$(1) --parallel $(JOBS) --target front_http_fuzz
	build/$(1)/tests/cpp/front/front_http_fuzz readers $(FUZZ_INPUTS)
	build/$(1)/tests/cpp/front/front_http_fuzz server $(FUZZ_INPUTS)
endef
