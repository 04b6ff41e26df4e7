# make demo: installs, then trains, evaluates and shows the embedded example (about 8 minutes after
#            installation on two cores).
# make test: installs, then runs lint, types and every test but the parity and the heavy ones.
# make heavy: the tests that take many minutes each.
# make chaos: kills, signals, full and vanished disks, another clock, against a run left alone (10
#             minutes; full disks need root).
# make fuzz: ten minutes of hostile files for every reader, the same ones each time; what breaks one
#            is put into tests/fuzz/corpus/regressions.
# make coverage: the quick tests, and how much of the package they run.
# make lock: hashes of what setup.py and constraints.txt name, into requirements/.
# make sbom: what is installed, as CycloneDX (build/sbom.json).
# make audit: known vulnerabilities of it; asks PyPI.
# make parity: the tests that compare with PyTorch, in a second environment that has it.
# make beam: an environment with Apache Beam, and the tests of the pipeline in it.
# make try:  a page to try the models in, in an environment with Gradio (after make demo).
# make app: that environment, and the tests of the page in it.
# make bench:  training and generation beside transformers and PEFT, in that environment.
# make bench_scoring: time and memory of scoring 100,000 answers.
# make bench_input: reading images beside torch's DataLoader and transformers' image processor.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
DEMO = runs/demo
DEMO_IMAGES = 10000
# Each takes up to 6 GB.
TEST_PROCESSES = 2
QUESTIONS = $(DEMO)/data/questions/validation.jsonl

# glibc takes huge pages only if told before the process starts; worth a tenth of the step time.
export GLIBC_TUNABLES = glibc.malloc.hugetlb=1
export JAX_PLATFORMS = cpu
export TF_CPP_MIN_LOG_LEVEL = 2
# Processes that tests start would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint fast heavy chaos fuzz coverage parity beam app try bench bench_scoring
.PHONY: bench_input clean lock sbom audit

# The held-out phantoms are of the same build, from a stream of seeds that training never draws on.
demo: $(VENV)/.installed
	rm -rf $(DEMO)
	$(PY) -m cxrjax.build --dataset=phantom --seed=11 --images=$(DEMO_IMAGES) \
	    --validation_images=300 --long_side=144 --conspicuity=1.6 --image_format=jpg \
	    --out=$(DEMO)/data
	$(PY) -m cxrjax.train --config=configs/vindr_lora.py:demo --workdir=$(DEMO)/train
	$(PY) -m cxrjax.predict --checkpoint=data/demo_base --prompt=vqa \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/base.jsonl
	$(PY) -m cxrjax.predict --checkpoint=data/demo_base --prompt=detect \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/base_own_prompt.jsonl
	$(PY) -m cxrjax.predict --workdir=$(DEMO)/train \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/tuned.jsonl
	$(PY) -m cxrjax.score --benchmark=vindr_cxr_vqa \
	    --references=$(DEMO)/data/records/validation.jsonl \
	    --predictions=$(DEMO)/predictions/base.jsonl \
	    --predictions=$(DEMO)/predictions/base_own_prompt.jsonl \
	    --predictions=$(DEMO)/predictions/tuned.jsonl --out=$(DEMO)
	$(PY) -m cxrjax.report --workdir=$(DEMO) --out=$(DEMO) --notes=data/demo_base/notes.json \
	    --title="LoRA on phantom VinDr-CXR-VQA: base and tuned"

test: $(VENV)/.installed lint
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist=worksteal -m "not parity and not heavy"

# Chaos, meshes and processes in every combination, kernels in interpret mode: an hour.
heavy: $(VENV)/.installed
	$(PY) -m pytest -m "heavy and not parity"

chaos: $(VENV)/.installed
	$(PY) -m tests.chaos.chaos --ledger=runs/chaos/ledger.jsonl

fuzz: $(VENV)/.installed
	$(PY) -m tests.fuzz --seconds=600 --keep

# What the tests cover of the package, per file that they do not cover whole.
coverage: $(VENV)/.installed
	$(PY) -m pytest -n $(TEST_PROCESSES) -m "not slow and not parity" \
	    --cov=cxrjax --cov-report=term:skip-covered

fast: $(VENV)/.installed
	$(PY) -m pytest -n $(TEST_PROCESSES) -m "not slow and not parity"

parity: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m pytest -n $(TEST_PROCESSES) -m parity

beam: $(VENV)-beam/.installed
	$(VENV)-beam/bin/python -m pytest tests/papers/cxr_qba/test_qba_pipeline.py

app: $(VENV)-app/.installed
	$(VENV)-app/bin/python -m pytest tests/pages/demo

try: $(VENV)-app/.installed
	$(VENV)-app/bin/python -m cxrjax.demo_app

bench: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python tests/bench/run.py

bench_scoring: $(VENV)/.installed
	$(PY) -m tests.bench.scoring

bench_input: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python tests/bench/input_pipeline.py

# After a change of setup.py or constraints.txt: hashes of all files of each version, for every
# platform.
LOCK = $(VENV)-tools/bin/uv pip compile --quiet --generate-hashes --universal --upgrade \
    --python-version=3.11 --no-annotate --no-header --constraints=constraints.txt
lock: $(VENV)-tools/.installed
	grep -E '^(setuptools|wheel)==' constraints.txt | $(LOCK) - -o requirements/build.txt
	$(LOCK) setup.py --extra=test -o requirements/test.txt

sbom: $(VENV)/.installed $(VENV)-tools/.installed
	mkdir -p build
	$(VENV)-tools/bin/cyclonedx-py environment $(PY) --output-format=JSON --validate \
	    --output-file=build/sbom.json

audit: $(VENV)-tools/.installed
	$(VENV)-tools/bin/pip-audit --disable-pip --require-hashes -r requirements/test.txt

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Every file that is installed has a hash in requirements/, what builds the few that come as source
# included, and nothing else is fetched.
define install_hashed
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet --require-hashes -r requirements/build.txt
	$(1)/bin/pip install --quiet --require-hashes --no-build-isolation -r requirements/test.txt
	$(1)/bin/pip install --quiet --no-deps --no-build-isolation -e .
endef

$(VENV)/.installed: setup.py requirements/build.txt requirements/test.txt
	$(call install_hashed,$(VENV))
	touch $@

# Besides, by version: which build of PyTorch (CPU or CUDA) is the index's to say, and so its hash.
$(VENV)-parity/.installed: setup.py constraints.txt requirements/build.txt requirements/test.txt
	$(call install_hashed,$(VENV)-parity)
	$(VENV)-parity/bin/pip install --quiet -c constraints.txt \
	    "torch==2.13.0" "peft==0.21.2" "bert-score==0.3.13" "sentence-transformers==6.2.0"
	touch $@

# What looks at packages and is none of them.
$(VENV)-tools/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-tools
	$(VENV)-tools/bin/pip install --quiet "uv==0.13.9" "cyclonedx-bom==7.5.0" "pip-audit==2.10.1"
	touch $@

# Apache Beam 2.77 refuses the versions of these that everybody else installs.
$(VENV)-beam/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)-beam
	$(VENV)-beam/bin/pip install --quiet --upgrade pip
	sed -E '/^(beartype|pillow|protobuf|pyarrow|python-dateutil)==/d' constraints.txt \
	    > $(VENV)-beam/constraints.txt
	$(VENV)-beam/bin/pip install --quiet -c $(VENV)-beam/constraints.txt \
	    "apache-beam==2.77.0" -e ".[test,beam]"
	touch $@

# Gradio 6.31 refuses the version of Pillow that everybody else installs.
$(VENV)-app/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)-app
	$(VENV)-app/bin/pip install --quiet --upgrade pip
	sed -E '/^pillow==/d' constraints.txt > $(VENV)-app/constraints.txt
	$(VENV)-app/bin/pip install --quiet -c $(VENV)-app/constraints.txt \
	    "gradio==6.31.0" -e ".[test,app]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-parity $(VENV)-beam $(VENV)-app $(VENV)-tools runs build *.egg-info
