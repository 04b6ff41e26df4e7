# make demo: installs, then simulates lesions, trains, evaluates and shows (13 minutes of processor
#            time after installation).
# make demo_phantom: the same on drawn radiographs.
# make test: installs, then runs the tests that are quick (12 minutes on two cores).
# make slow: the other tests: several processes, browsers, notebooks, commands that train (half an hour).
# make lint: ruff, mypy, and the first words of docstrings (docs/docstring_openings.txt).
# make affected BASE=COMMIT: of both, those that can reach a file changed since the commit.
# make heavy: the tests that take many minutes each; no gate runs them.
# make chaos: kills, signals, full and vanished disks, another clock, against a run left alone (10
#             minutes; full disks need root).
# make fuzz: ten minutes of hostile files for every reader, the same ones each time; what breaks one
#            is put into bench/fuzz/corpus/regressions.
# make faults: plants each fault of tests/faults/ in a copy and sees its test fail.
# make coverage: how much of the package the quick and the slow tests run.
# make lock: hashes of what setup.py and constraints.txt name, into requirements/.
# make sbom: what is installed, as CycloneDX (build/sbom.json).
# make size: what `pip install .` takes on disk, without any extra.
# make audit: known vulnerabilities of it; asks PyPI.
# make parity: the tests that compare with PyTorch or need bucket servers, in a second environment
#             that has them; there `pytest -m "parity and heavy"` has 300 drawn configurations, hours.
# make beam: an environment with Apache Beam, and the tests of the pipeline in it.
# make try:  a page to try the models in, in an environment with Gradio (after make demo).
# make app: that environment, and the tests of the page in it.
# make bench:  training and generation beside transformers and PEFT, in that environment.
# make readers: how well the reader of radiology language reads, beside other libraries, in an
#             environment that has them.
# make grammar: what another grammar checker finds in 6,000 records, in an environment that has it.
# make bench_scoring: time and memory of scoring 100,000 answers.
# make bench_rl: a step of reinforcement learning beside TRL, in an environment that has it.
# make bench_serving: the server beside transformers, in the environment of `make bench`.
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

.PHONY: demo demo_phantom test slow affected lint heavy chaos fuzz faults coverage parity beam app try bench bench_scoring
.PHONY: bench_input bench_rl bench_serving readers grammar clean lock sbom audit docs size

# Lesions are simulated into the radiographs that ship, of which some patients are held out.
demo: $(VENV)/.installed
	rm -rf $(DEMO)
	$(PY) -m cxrjax.build --dataset=grafts --source=data/radiographs --variants=4 \
	    --normal_percent=12 --contrast=1.5 --image_format=jpg --processes=2 --out=$(DEMO)/data
	$(PY) -m cxrjax.build --dataset=lungs --source=data/radiographs --out=$(DEMO)/lungs
	$(PY) -m cxrjax.train --config=configs/vindr_lora.py:demo --workdir=$(DEMO)/train
	$(call answer_and_score,data/real_base)
	$(PY) -m cxrjax.predict --checkpoint=data/real_base \
	    --questions=$(DEMO)/lungs/questions/validation.jsonl --out=$(DEMO)/lungs/base.jsonl
	$(PY) -m cxrjax.predict --workdir=$(DEMO)/train --source=lungs \
	    --questions=$(DEMO)/lungs/questions/validation.jsonl --out=$(DEMO)/lungs/tuned.jsonl
	$(PY) -m cxrjax.score --benchmark=lungs \
	    --references=$(DEMO)/lungs/records/validation.jsonl \
	    --predictions=$(DEMO)/lungs/base.jsonl --predictions=$(DEMO)/lungs/tuned.jsonl \
	    --out=$(DEMO)/lungs
	$(PY) -m cxrjax.report --workdir=$(DEMO) --out=$(DEMO) --notes=data/real_base/notes.json \
	    --title="LoRA on real radiographs with simulated lesions: base and tuned"

# The same on drawn radiographs. The held-out phantoms are of the same build, from a stream of seeds
# that training never draws on.
demo_phantom: $(VENV)/.installed
	rm -rf $(DEMO)
	$(PY) -m cxrjax.build --dataset=phantom --seed=11 --images=$(DEMO_IMAGES) \
	    --validation_images=300 --long_side=144 --conspicuity=1.6 --image_format=jpg \
	    --out=$(DEMO)/data
	$(PY) -m cxrjax.train --config=configs/vindr_lora.py:phantom --workdir=$(DEMO)/train
	$(call answer_and_score,data/demo_base)
	$(PY) -m cxrjax.report --workdir=$(DEMO) --out=$(DEMO) --notes=data/demo_base/notes.json \
	    --title="LoRA on phantom VinDr-CXR-VQA: base and tuned"

# What a base and the run tuned from it answer, and how good that is.
define answer_and_score
	$(PY) -m cxrjax.predict --checkpoint=$(1) --prompt=vqa \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/base.jsonl
	$(PY) -m cxrjax.predict --checkpoint=$(1) --prompt=detect \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/base_own_prompt.jsonl
	$(PY) -m cxrjax.predict --workdir=$(DEMO)/train \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/tuned.jsonl
	$(PY) -m cxrjax.predict --workdir=$(DEMO)/train --image=blind \
	    --questions=$(QUESTIONS) --out=$(DEMO)/predictions/tuned_blind.jsonl
	$(PY) -m cxrjax.score --benchmark=vindr_cxr_vqa \
	    --references=$(DEMO)/data/records/validation.jsonl \
	    --predictions=$(DEMO)/predictions/base.jsonl \
	    --predictions=$(DEMO)/predictions/base_own_prompt.jsonl \
	    --predictions=$(DEMO)/predictions/tuned.jsonl \
	    --predictions=$(DEMO)/predictions/tuned_blind.jsonl --out=$(DEMO)
endef

TEST = $(PY) -m pytest -n $(TEST_PROCESSES) --dist=worksteal
QUICK = not slow and not parity
SLOW = slow and not heavy and not parity

test: $(VENV)/.installed
	$(TEST) -m "$(QUICK)"

slow: $(VENV)/.installed
	$(TEST) -m "$(SLOW)"

affected: $(VENV)/.installed
	$(if $(BASE),,$(error make affected BASE=COMMIT: the commit that the change is against))
	@files=$$($(PY) -m tests.import_graph $(BASE)) || exit; \
	if [ -z "$$files" ]; then echo "No test can reach what changed."; \
	else $(TEST) -m "not heavy and not parity" $$files; fi

# Chaos, meshes and processes in every combination, kernels in interpret mode: an hour.
heavy: $(VENV)/.installed
	$(PY) -m pytest -m "heavy and not parity"

chaos: $(VENV)/.installed
	$(PY) -m bench.chaos.chaos --ledger=runs/chaos/ledger.jsonl

fuzz: $(VENV)/.installed
	$(PY) -m bench.fuzz --seconds=600 --keep

faults: $(VENV)/.installed
	$(PY) -m tests.faults --jobs=$(TEST_PROCESSES)

# What the tests cover of the package, per file that they do not cover whole.
coverage: $(VENV)/.installed
	$(TEST) -m "not heavy and not parity" --cov=cxrjax --cov-report=term:skip-covered

parity: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m pytest -n $(TEST_PROCESSES) -m "(parity or buckets) and not heavy"

beam: $(VENV)-beam/.installed
	$(VENV)-beam/bin/python -m pytest tests/papers/cxr_qba/test_qba_pipeline.py

app: $(VENV)-app/.installed
	$(VENV)-app/bin/python -m pytest tests/apps/demo

try: $(VENV)-app/.installed
	$(VENV)-app/bin/python -m cxrjax.demo_app

bench: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m bench.run

bench_scoring: $(VENV)/.installed
	$(PY) -m bench.scoring

bench_input: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m bench.input_pipeline

bench_serving: $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m bench.serving --beside

bench_rl: $(VENV)-rl/.installed
	$(VENV)-rl/bin/python -m bench.rl

grammar: $(VENV)/.installed $(VENV)-grammar/.installed
	PYTHONPATH=.:$(VENV)-grammar/lib $(PY) -m bench.grammar

readers: $(VENV)-readers/.installed
	$(VENV)-readers/bin/python -m bench.readers --families
	$(VENV)-readers/bin/python -m bench.readers --frames
	$(VENV)-readers/bin/python -m bench.readers --speed
	$(VENV)-readers/bin/python -m bench.readers --radlabels

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

size:
	rm -rf build/size
	$(PYTHON) -m venv build/size
	build/size/bin/pip install --quiet --no-cache-dir -c constraints.txt .
	du -sm build/size
	du -sm build/size/lib/python*/site-packages/* | sort -rn | head -12

audit: $(VENV)-tools/.installed
	$(VENV)-tools/bin/pip-audit --disable-pip --require-hashes -r requirements/test.txt

# The documentation as a site in build/site; a link that leads nowhere fails it.
docs: $(VENV)/.installed $(VENV)-docs/.installed
	$(PY) docs/site/gather.py --out=build/site_source
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --config-file=docs/site/mkdocs.yml
	$(PY) -m tests.apps.site

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) docs/check_docstrings.py
	$(VENV)/bin/mypy

# Every file that is installed has a hash in requirements/, what builds the few that come as source
# included, and nothing else is fetched: the lists are whole, so that pip resolves nothing (it would
# weigh a release younger than the lists and refuse it), and `pip check` says that they are.
define install_hashed
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install --quiet --no-deps --require-hashes -r requirements/build.txt
	$(1)/bin/pip install --quiet --no-deps --require-hashes --no-build-isolation -r requirements/test.txt
	$(1)/bin/pip install --quiet --no-deps --no-build-isolation -e .
	$(1)/bin/pip check
endef

$(VENV)/.installed: setup.py requirements/build.txt requirements/test.txt
	$(call install_hashed,$(VENV))
	touch $@

# What the tests have, seen from there, and besides, by version: which build of PyTorch (CPU or CUDA)
# is the index's to say, and so its hash.
$(VENV)-parity/.installed: $(VENV)/.installed constraints.txt
	$(PYTHON) -m venv $(VENV)-parity
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    > $$($(VENV)-parity/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tests.pth
	$(VENV)-parity/bin/pip install --quiet -c constraints.txt \
	    "torch==2.13.0" "peft==0.21.2" "bert-score==0.3.13" "sentence-transformers==6.2.0" \
	    "torchmetrics==1.9.0" -e ".[test-buckets]"
	touch $@

$(VENV)-docs/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet \
	    "mkdocs-material==9.8.2" "mkdocstrings-python==2.0.11" "mkdocs-jupyter==0.26.3"
	touch $@

$(VENV)-rl/.installed: setup.py constraints.txt requirements/build.txt requirements/test.txt
	$(call install_hashed,$(VENV)-rl)
	$(VENV)-rl/bin/pip install --quiet -c constraints.txt \
	    "torch==2.13.0" "trl==1.16.0" "peft==0.21.2" "datasets==5.2.0" "accelerate==1.15.0"
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

# medspaCy refuses the versions of spaCy and NumPy that everybody else installs; radlabels would bring
# PyTorch, and only its samples are read; a wheel among them installs a package `tests` of its own.
$(VENV)-readers/.installed: Makefile
	$(PYTHON) -m venv $(VENV)-readers
	$(VENV)-readers/bin/pip install --quiet "medspacy==1.3.1" "medspacy_quickumls==3.2" \
	    "negspacy==1.0.4" "numpy==1.26.4" "scipy==1.13.1" "spacy==3.7.5"
	$(VENV)-readers/bin/pip install --quiet --no-deps "radlabels==0.2.0"
	rm -rf $(VENV)-readers/lib/python*/site-packages/tests
	touch $@

# Beside what is installed, not in it: a young binding of a grammar checker, of one file.
$(VENV)-grammar/.installed: Makefile
	$(PYTHON) -m pip install --quiet --no-deps --target=$(VENV)-grammar/lib "harper-py==0.2.0"
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
	rm -rf $(VENV) $(VENV)-parity $(VENV)-rl $(VENV)-beam $(VENV)-app $(VENV)-readers $(VENV)-tools $(VENV)-docs \
	    runs build *.egg-info
