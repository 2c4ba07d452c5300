# Two commands need nothing else on a fresh machine: `make demo` and `make test`. `make help` lists the others.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# NumPy's matrix speed halves where a shell pins OpenBLAS to old kernels; measurements and the demo lift the pin.
UNPIN  := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE
ONE    := OMP_NUM_THREADS=1
READY  := $(VENV)/.installed

.PHONY: help demo test lint unit test-long test-fast test-random test-all fuzz mutants mutate browser-test docs sbom clean
.PHONY: families names emit-stub target-kernels target-probes file-digests figures fused matrix conditions-at-sample
.DEFAULT_GOAL := help

help:                       ## list the targets
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	      match($$0, /^(page\.)?[a-z][a-z0-9 -]*( =|:)/) && /## / { name = substr($$0, 1, RLENGTH); sub(/ ?[=:]$$/, "", name); \
	          sub(/^page\./, "page-", name); text = $$0; sub(/^.*## /, "", text); printf "  %-25s %s\n", name, text }' Makefile

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	printf '%s\nimport torchvision_hook\n' $(CURDIR)/tests/torchvision_shim > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision_hook.pth
	touch $@

demo: $(READY)              ## export ResNet-50 and BERT-base, run both in the runner and in onnxruntime
	$(UNPIN) $(BIN)/python -m models_zoo.demo

clean:                      ## remove the environment and everything built or measured
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache

##@ Tests
test: lint unit             ## lint, types, the default suite

lint: $(READY)              ## ruff, mypy, and the words of pages, help and errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.check_prose

unit: $(READY)              ## the default suite; `make unit DRAW=2` with other random numbers
	$(ONE) $(BIN)/python -m pytest -n 2 -m 'not slow and not long'

test-long: $(READY)         ## the cases marked as long, which take half of the time and which `make test` leaves out
	$(ONE) $(BIN)/python -m pytest -n 2 -m 'long and not slow'

test-fast: out/fast/.installed ## the runner's tests with the compiled kernels of fx2onnx[fast]
	NUMBA_CACHE_DIR=$(CURDIR)/out/fast/cache PYTHONPATH=out/fast $(ONE) $(BIN)/python -m pytest -n 2 -m 'not slow' tests/runner

out/fast/.installed: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target out/fast numba==0.68.0 llvmlite==0.50.0
	touch $@

test-random: $(READY)       ## the default suite in a random order; `make test-random SEED=7` repeats one
	$(ONE) $(BIN)/python -m pytest -n 2 -m 'not slow and not long' --random-order-bucket=global $(if $(SEED),--random-order-seed=$(SEED))

test-all: $(READY)          ## all tests, with the slow sweeps
	$(ONE) $(BIN)/python -m pytest -n 2

browser-test: $(READY)      ## reports and examples/browser in a headless browser; installs Chromium and onnxruntime-web if missing
	command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update && apt-get install -y chromium; } || $(BIN)/python -m playwright install chromium
	npm install --no-audit --no-fund --prefix out/web onnxruntime-web
	OMP_NUM_THREADS=1 BROWSER_REQUIRED=1 $(BIN)/python -m pytest tests/report tests/test_examples.py -n 0

fuzz: $(READY)              ## 10 000 malformed files for each command and reader (tests/fuzz); time and memory limited (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --cases 10000

mutants: $(READY)           ## put fifty faults of the past back, one at a time; the tests must notice each (half an hour)
	$(ONE) $(BIN)/python -m tests.mutants

out/cosmic-ray/.installed:
	$(PYTHON) -m venv out/cosmic-ray
	out/cosmic-ray/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	touch $@

mutate: $(READY) out/cosmic-ray/.installed ## mutate the lines of fx2onnx/ that changed since BASE, report what no test notices (TESTS="..." names the tests)
	$(ONE) $(BIN)/python -m tools.mutate $(or $(BASE),main) --tools out/cosmic-ray/bin $(if $(TESTS),--tests $(TESTS))

##@ Tables, package data, and the site
families: $(READY)          ## which file of the ATen table, and of capture, registers which overloads, into their families.json, and what `fx2onnx ops` lists
	$(BIN)/python -m tools.aten_families fx2onnx/aten_map/table/families.json
	$(BIN)/python -m tools.capture_families fx2onnx/capture/overloads/families.json
	$(BIN)/python -m tools.overload_rows

names: $(READY)             ## the names of models of each library, which suggest what a misspelt source means
	$(BIN)/python -m tools.model_names

options: $(READY)           ## the options of all commands into docs/cli/, and the Python functions into docs/python/
	$(BIN)/python -m tools.options_page
	$(BIN)/python -m tools.python_page

emit-stub: $(READY)         ## the signatures of Emit's operators, from ONNX's schemas, into fx2onnx/irx/emit_ops.pyi
	$(BIN)/python -m tools.emit_stub fx2onnx/irx/emit_ops.pyi

target-kernels: $(READY)    ## which kernels each release of onnxruntime has, into fx2onnx/targets/tables (installs each release; minutes)
	$(ONE) $(BIN)/python -m tools.target_kernels

onnxruntime-schemas: $(READY) ## the schemas of onnxruntime's own operators, into fx2onnx/semantics/onnxruntime_schemas.json
	$(BIN)/python -m tools.onnxruntime_schemas

onnxruntime-tools: $(READY)  ## files that onnxruntime's quantizer and optimizers make of the zoo, node by node in the runner (half an hour)
	$(ONE) $(BIN)/python -m studies.onnxruntime_tools

target-probes: $(READY)     ## which operators, dtypes and options other runtimes run, into fx2onnx/targets/tables (installs them; an hour)
	$(ONE) $(BIN)/python -m tools.target_probes

file-digests: $(READY)      ## digests of the files and reports of all models, to compare two states of the code; resumes (an hour)
	$(ONE) $(BIN)/python -m tools.file_digests

out/docs-env/.installed: pyproject.toml
	$(PYTHON) -m venv out/docs-env
	out/docs-env/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: out/docs-env/.installed ## the documents as a site of this version, into out/docs/VERSION; a warning is an error
	out/docs-env/bin/python -m tools.docs_site out/docs

out/sbom/.installed: pyproject.toml
	$(PYTHON) -m venv out/sbom/tool
	out/sbom/tool/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	touch $@

sbom: out/sbom/.installed   ## what the wheel brings along, as CycloneDX, into out/sbom/fx2onnx.cdx.json
	rm -rf out/sbom/clean && $(PYTHON) -m venv out/sbom/clean --without-pip
	out/sbom/tool/bin/python -m pip --python out/sbom/clean/bin/python install --quiet --disable-pip-version-check .
	out/sbom/tool/bin/cyclonedx-py environment out/sbom/clean/bin/python --pyproject pyproject.toml --output-reproducible -o out/sbom/fx2onnx.cdx.json
	$(PYTHON) -m tools.sbom out/sbom/fx2onnx.cdx.json

##@ Pages of docs/: `make page-NAME`, or `make NAME`
page.benchmarks = benchmarks.export_time --write docs/measured/benchmarks.md ## export time against torch.onnx.export, in one process
page.scaling = benchmarks.export_scaling --write docs/measured/scaling.md ## export time by sample size and depth, and memory
page.start-time = benchmarks.start_time --write docs/measured/start_time.md ## commands beside imports alone, the first export of a process beside the second
page.training-speed = benchmarks.training_speed --write docs/measured/training_speed.md ## time and memory of a training step beside eager PyTorch, and of its export (minutes)
page.verify-cost = benchmarks.verify_cost --write docs/measured/verify_cost.md ## cost of verify and locate in forwards of eager PyTorch
page.optimize-files = benchmarks.optimize_files --onnxsim out/onnxsim/bin/python --write docs/measured/optimize_files.md --counts tests/data/foreign/onnxsim.json ## files of other tools, optimized beside onnxsim (minutes)
page.certificates = studies.certificates --onnxsim out/onnxsim/bin/python --write ## certificates of optimized files beside those of onnxsim; resumes (tens of minutes)
page.value-ranges = studies.value_ranges --write ## derived bounds of rounding beside measured rounding; resumes (tens of minutes)
page.proofs = studies.proofs --write ## prove every rewrite, opset change and decomposition on symbols, in z3 or on all small inputs, and plant wrong ones (ten minutes)
page.operators = tools.operators_page docs/measured/operators.md ## every row of PyTorch's operator database; resumes (an hour)
page.gradients = tools.gradients_page docs/measured/gradients.md ## gradients of PyTorch's operator database (minutes)
page.overload-sweep = benchmarks.overload_sweep --seed 41 --each 8 --write ## calls of all exportable overloads, drawn from the schemas and moved by a table; resumes (an hour)
page.sabotage = studies.sabotage --seeds 2 --locate --write docs/measured/sabotage.md ## harmed files of 15 architectures: what verify and locate notice (minutes)
page.planted = studies.planted --each 4 --write docs/measured/planted.md ## faults planted in the exporter and the runner: which stage locate names (minutes)
page.verify-alarms = studies.verify_alarms ## sound exports that verify refuses at its defaults; resumes (hours)
page.training-coverage = studies.training_coverage --write docs/measured/training_coverage.md ## every kind of model trained in exported graphs beside PyTorch (tens of minutes)
page.prompt-forms = studies.prompt_forms --write docs/measured/prompt_forms.md ## prompts of recurrent models in one call and token by token (minutes)
page.dynamic-sizes = studies.dynamic_sizes ## which sizes that eager PyTorch takes are dynamic in the file; resumes (hours)
page.dynamic-libraries = studies.dynamic_libraries ## networks of diffusers, MONAI and torchaudio at other sizes; needs those packages (minutes)
page.data-size-programs = studies.data_size_programs ## programs with data-dependent sizes beside eager PyTorch; resumes (minutes)
page.low-bits = benchmarks.low_bits --write docs/measured/low_bits.md ## products, files and fitting of low-bit weights, in onnxruntime (minutes)
page.quantized-zoo = studies.quantized_zoo --write docs/measured/quantized_zoo.md ## every zoo model with low-bit weights, verified (20 minutes)
page.target-files = studies.target_files ## what lint says of 100 exports beside what the runtimes do, after `make target-probes` (minutes)
page.pipelines = studies.pipelines ## every diffusers pipeline of studies/tiny_pipelines exported, run and compared with diffusers (ten minutes)
page.generation-coverage = studies.coverage_generation ## generation of every transformers type with a cache (hours)
page.transformers-backend = studies.transformers_backend ## parts of generating types through transformers' exporters (20 minutes)

THREADED := benchmarks scaling start-time training-speed
PAGES := $(patsubst page.%,%,$(filter page.%,$(.VARIABLES)))

.PHONY: $(PAGES) $(PAGES:%=page-%)
$(PAGES): %: page-%
$(PAGES:%=page-%): page-%: $(READY)
	$(UNPIN) $(if $(filter $*,$(THREADED)),,$(ONE)) $(BIN)/python -m $(page.$*)

page-optimize-files page-certificates: out/onnxsim/.installed
out/onnxsim/.installed:
	$(PYTHON) -m venv out/onnxsim
	out/onnxsim/bin/python -m pip install --quiet --disable-pip-version-check onnxsim==0.8.1 z3-solver==5.4.1.0
	touch $@

page-proofs: export PYTHONPATH := out/z3
page-proofs: out/z3/.installed
out/z3/.installed: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target out/z3 'z3-solver==5.4.1.0'
	touch $@

.PHONY: bench training
bench: page-benchmarks
training: page-training-coverage

##@ Other measurements
.PHONY: runner-sweep
runner-sweep: $(READY)      ## the runner beside onnxruntime over operators and models, into docs/measured/runner_speed.md (eight minutes)
	$(UNPIN) $(ONE) $(BIN)/python -m benchmarks.runner_sweep --write docs/measured/runner_speed.md

figures: $(READY)           ## measure and draw the two figures of docs/measured/figures.md (minutes)
	$(UNPIN) $(BIN)/python -m benchmarks.figures

out/genai/.installed: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target out/genai onnxruntime-genai==0.18.0
	touch $@

fused: out/genai/.installed ## fused files beside those of onnxruntime-genai and onnxruntime's optimizer, into docs/measured/fused.md (half an hour)
	PYTHONPATH=out/genai $(ONE) $(BIN)/python -m benchmarks.fused prepare out/fused
	PYTHONPATH=out/genai $(ONE) $(BIN)/python -m benchmarks.fused measure out/fused --write docs/measured/fused.md

matrix: $(READY)            ## the core tests in environments of many versions, into docs/measured/compatibility.md; resumes (hours)
	$(BIN)/python -m studies.compatibility

conditions-at-sample: $(READY) ## whether each condition in the report of each model is true at its own example inputs; resumes (minutes)
	$(ONE) $(BIN)/python -m studies.conditions_at_sample --write

sweep-third-party: $(READY) ## models of 130 other packages with dynamic sizes, into docs/measured/third_party.md; installs the packages into build/; resumes (hours)
	$(ONE) $(BIN)/python -m studies.third_party.sweep

.PHONY: sweep-torchvision sweep-timm sweep-hf sweep-third-party
sweep-torchvision sweep-timm sweep-hf: sweep-%: $(READY) ## export and verify every model of a library into docs/measured/coverage.md; resumes
	$(ONE) $(BIN)/python -m studies.coverage --source $* --jobs 2
