# Two commands need nothing else on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# NumPy's matrix speed halves where a shell pins OpenBLAS to old kernels; benchmarks and the demo lift the pin.
UNPIN  := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE

.PHONY: demo test lint unit test-long test-random test-all mutants mutate fuzz bench scaling operators gradients training training-speed sabotage planted verify-cost start-time verify-alarms dynamic-sizes conditions-at-sample file-digests dynamic-libraries data-size-programs prompt-forms optimize-files quantized-zoo matrix target-kernels target-probes target-files emit-stub figures browser-test docs fused sweep-torchvision sweep-timm sweep-hf clean
.DEFAULT_GOAL := demo

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed    ## export ResNet-50 and BERT-base, run both in the runner and in onnxruntime
	$(UNPIN) $(BIN)/python -m models_zoo.demo

test: lint unit             ## lint, types, the default suite

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not slow and not long'

test-long: $(VENV)/.installed ## the cases marked as long, which take half of the time and which `make test` leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'long and not slow'

test-random: $(VENV)/.installed ## the default suite in a random order; `make test-random SEED=7` repeats one
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not slow and not long' --random-order-bucket=global $(if $(SEED),--random-order-seed=$(SEED))

test-all: $(VENV)/.installed ## both, and the slow sweeps
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

fuzz: $(VENV)/.installed    ## malformed files: 20 000 in the runner, 10 000 of each target of tests/fuzz; time and memory limited (minutes)
	cd tests/runner && OMP_NUM_THREADS=1 $(abspath $(BIN))/python fuzz.py --keep ../../out/fuzz
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --cases 10000

mutants: $(VENV)/.installed ## put fifty faults of the past back, one at a time; the tests must notice each (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

out/cosmic-ray/.installed:
	$(PYTHON) -m venv out/cosmic-ray
	out/cosmic-ray/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
	touch $@

mutate: $(VENV)/.installed out/cosmic-ray/.installed ## mutate the lines of fx2onnx/ that changed since BASE; what no test notices (TESTS="..." names the tests)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutate $(or $(BASE),main) --tools out/cosmic-ray/bin $(if $(TESTS),--tests $(TESTS))

bench: $(VENV)/.installed   ## export time against torch.onnx.export, in one process, into docs/benchmarks.md
	$(UNPIN) $(BIN)/python -m benchmarks.export_time --write docs/benchmarks.md

scaling: $(VENV)/.installed ## export time by sample size and depth, and memory, into docs/scaling.md
	$(UNPIN) $(BIN)/python -m benchmarks.export_scaling --write docs/scaling.md

operators: $(VENV)/.installed ## sweep PyTorch's operator database into docs/operators.md (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.ops.operators_page docs/operators.md

.PHONY: overload-sweep
overload-sweep: $(VENV)/.installed ## draw calls from the schemas of all exportable overloads, compare with eager PyTorch, into docs/overload_sweep.md; goes on where it stopped (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.overload_sweep --seed 41 --each 1 --write

gradients: $(VENV)/.installed ## differentiate PyTorch's operator database into docs/gradients.md (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.ops.gradients_page docs/gradients.md

sabotage: $(VENV)/.installed ## harm files of 15 architectures in every known way; what verify and locate notice, into docs/sabotage.md (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sabotage --seeds 2 --locate --write docs/sabotage.md

planted: $(VENV)/.installed ## plant faults in each stage of exporter and runner; which stage locate names, into docs/planted.md (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.planted --each 4 --write docs/planted.md

training: $(VENV)/.installed ## train every kind of model in exported graphs beside PyTorch, into docs/training_coverage.md (tens of minutes)
	$(UNPIN) OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.training_coverage --write docs/training_coverage.md

training-speed: $(VENV)/.installed ## a step's time and memory beside eager PyTorch's, and what its export takes, into docs/training_speed.md (minutes)
	$(UNPIN) $(BIN)/python -m benchmarks.training_speed --write docs/training_speed.md

prompt-forms: $(VENV)/.installed ## prompts of recurrent models in one call and token by token, into docs/prompt_forms.md (minutes)
	$(UNPIN) OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.prompt_forms --write docs/prompt_forms.md

verify-cost: $(VENV)/.installed ## what verify and locate cost in forwards of eager PyTorch, into docs/verify_cost.md
	OMP_NUM_THREADS=1 $(UNPIN) $(BIN)/python -m benchmarks.verify_cost --write docs/verify_cost.md

start-time: $(VENV)/.installed ## whole commands beside imports alone, the first export of a process beside the second, into docs/start_time.md
	$(UNPIN) $(BIN)/python -m benchmarks.start_time --write docs/start_time.md

verify-alarms: $(VENV)/.installed ## sound exports that verify refuses at its defaults, into docs/verify_alarms.md; goes on where it stopped (hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.verify_alarms

dynamic-sizes: $(VENV)/.installed ## which sizes that eager PyTorch takes are dynamic in the file, into docs/dynamic_sizes.md; goes on where it stopped (hours)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.dynamic_sizes

conditions-at-sample: $(VENV)/.installed ## whether each condition in the report of each model is true at its own example inputs; goes on where it stopped (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.conditions_at_sample

file-digests: $(VENV)/.installed ## digests of the files and reports of all models into out/file_digests.jsonl, to compare two states of the code; goes on where it stopped (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.file_digests

dynamic-libraries: $(VENV)/.installed ## networks of diffusers, MONAI and torchaudio at other sizes, into docs/dynamic_libraries.md; needs those packages (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.dynamic_libraries

data-size-programs: $(VENV)/.installed ## programs that take sizes and indices from data, beside eager PyTorch, into docs/data_size_programs.md; goes on where it stopped (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.data_size_programs

out/onnxsim/.installed:
	$(PYTHON) -m venv out/onnxsim
	out/onnxsim/bin/python -m pip install --quiet --disable-pip-version-check onnxsim==0.8.1
	touch $@

out/genai/.installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target out/genai onnxruntime-genai==0.18.0
	touch $@

fused: out/genai/.installed     ## fused files beside those of onnxruntime-genai's model builder and onnxruntime's own optimizer, in onnxruntime, into docs/fused.md (half an hour)
	PYTHONPATH=out/genai OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fused prepare out/fused
	PYTHONPATH=out/genai OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fused measure out/fused --write docs/fused.md

quantized-zoo: $(VENV)/.installed ## every zoo model with weights in few bits, verified, into docs/quantized_zoo.md (20 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.quantized_zoo --write docs/quantized_zoo.md

optimize-files: $(VENV)/.installed out/onnxsim/.installed ## files of other tools optimised beside onnxsim, into docs/optimize_files.md (minutes)
	$(UNPIN) OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.optimize_files --onnxsim out/onnxsim/bin/python --write docs/optimize_files.md --counts tests/data/foreign/onnxsim.json

target-kernels: $(VENV)/.installed ## which kernels each release of onnxruntime has, into fx2onnx/targets/tables (installs each release beside; minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.target_kernels

target-probes: $(VENV)/.installed ## which operators, dtypes and options other runtimes run, into fx2onnx/targets/tables (installs them beside; an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.target_probes

target-files: $(VENV)/.installed ## what lint says of 100 exports beside what the runtimes do with them, into docs/target_files.md; after `make target-probes` (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.target_files

matrix: $(VENV)/.installed ## the core tests in environments of many versions, into docs/compatibility.md; goes on where it stopped (hours); one: `python -m benchmarks.compatibility --only NAME`
	$(BIN)/python -m benchmarks.compatibility

.PHONY: families
families: $(VENV)/.installed ## which file of the ATen table, and of capture, registers which overloads, into their families.json
	$(BIN)/python -m tests.ops.families fx2onnx/aten_map/table/families.json
	$(BIN)/python -m tests.capture.families fx2onnx/capture/overloads/families.json

emit-stub: $(VENV)/.installed ## the signatures of Emit's operators, from ONNX's schemas, into fx2onnx/irx/emit_ops.pyi
	$(BIN)/python -m tests.ops.emit_stub fx2onnx/irx/emit_ops.pyi

figures: $(VENV)/.installed  ## measure and draw the two figures of docs/figures.md (minutes)
	$(UNPIN) $(BIN)/python -m benchmarks.figures

browser-test: $(VENV)/.installed ## the pages of reports and of examples/browser in a real headless browser; installs Chromium and onnxruntime-web where they are missing
	command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update && apt-get install -y chromium; } || $(BIN)/python -m playwright install chromium
	npm install --no-audit --no-fund --prefix out/web onnxruntime-web
	OMP_NUM_THREADS=1 BROWSER_REQUIRED=1 $(BIN)/python -m pytest tests/report tests/test_examples.py -n 0

out/docs-env/.installed: pyproject.toml
	$(PYTHON) -m venv out/docs-env
	out/docs-env/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

docs: out/docs-env/.installed ## the documents as a site, into out/docs; a warning is an error
	out/docs-env/bin/python -m sphinx -b html -W --keep-going -q docs out/docs

sweep-torchvision sweep-timm sweep-hf: sweep-%: $(VENV)/.installed ## export and verify every model of a library into docs/coverage.md; goes on where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.coverage --source $* --jobs 2

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache
