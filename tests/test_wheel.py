"""The wheel on its own: built, put into an empty folder, and used from another one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax import choices
from cxrjax.__main__ import commands
from cxrjax.apps.annotations.formats import FORMATS
from cxrjax.apps.results import pictures
from cxrjax.codecs import CODECS
from cxrjax.decoding.answer_forms import ANSWER_FORMS
from cxrjax.decoding.box_readings import BOX_READINGS
from cxrjax.evaluation import flags
from cxrjax.evaluation.systems import stand_in_images, systems, table
from cxrjax.input_pipeline import prompts, wording

ROOT = Path(__file__).parents[1]
# Seconds of a processor that --help may take, and what takes two fifths of them.
_HELP_SECONDS = 0.5
_LIBRARIES = "import tyro, pydantic.dataclasses, pydantic.json_schema"


def _run(words, **settings):
    return subprocess.run(words, capture_output=True, text=True, **settings)


def test_the_list_of_commands_imports_nothing_and_names_the_nearest():
    listed = _run([sys.executable, "-X", "importtime", "-m", "cxrjax", "--help"], cwd=ROOT)
    assert listed.returncode == 0
    assert {"train", "check_records", "coordinates"} <= set(commands())
    assert all(f"  {name} " in listed.stdout for name in commands())
    for library in ("numpy", "jax", "pydantic", "cxrjax.train"):
        assert f" {library}\n" not in listed.stderr, library
    mistyped = _run([sys.executable, "-m", "cxrjax", "trian"], cwd=ROOT)
    assert mistyped.returncode == 2
    assert mistyped.stderr == "error: trian: no such command; the nearest is train\n"
    other = _run([sys.executable, "-m", "cxrjax", "nosuch"], cwd=ROOT)
    assert other.stderr == "error: nosuch: no such command; `cxrjax --help` lists them\n"


@pytest.mark.parametrize("command", ["cxrjax", "cxrjax.score"])
def test_output_that_nobody_reads_to_its_end_is_no_error(command):
    script = f"{sys.executable} -m {command} --help | true; echo ${{PIPESTATUS[0]}}"
    cut = _run(["bash", "-c", script], cwd=ROOT)
    assert cut.stderr == "" and cut.stdout in ("0\n", "141\n")


def test_flags_choose_among_all_names():
    tables = {
        **dict(CODECS=CODECS, GRAMMARS=ANSWER_FORMS, BOX_READINGS=BOX_READINGS),
        **dict(PROMPTS=prompts.PROMPTS, REWORDINGS=wording.REWORDINGS),
        **dict(STAND_INS=stand_in_images.STAND_INS, WORDINGS=systems.WORDINGS),
        **dict(READINGS=systems.READINGS, PICTURES=pictures.PICTURES, ANNOTATION_FORMATS=FORMATS),
    }
    assert {name for name in vars(choices) if name.isupper()} == set(tables)
    for name, table_of in tables.items():
        assert sorted(getattr(choices, name)) == sorted(table_of), name
    assert {"model", *flags.RUNNERS} == set(table.STARTERS)


@pytest.mark.parametrize("name", sorted(commands()))
def test_help_is_quick(name):
    words = ("-m", "cxrjax", name, "--help")
    told = _timed(*words)[1]  # may have to compile sources
    assert told.returncode == 0 and told.stdout.startswith("usage: ")
    # Processors take twice as long for a while, for the libraries too: 0.2 s at their quickest.
    pairs = ((_timed(*words)[0], _timed("-c", _LIBRARIES)[0]) for _ in range(5))
    assert any(spent < max(_HELP_SECONDS, 2.5 * libraries) for spent, libraries in pairs)


def _timed(*arguments):
    """The processor time that Python takes, in seconds, and how it ended."""
    before = os.times()
    ended = _run([sys.executable, *arguments], cwd=ROOT)
    return sum(os.times()[2:4]) - sum(before[2:4]), ended


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel of the working tree and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    bases = ("data/demo_base", "data/real_base")
    for name in ("setup.py", "pyproject.toml", "README.md", "cxrjax", "configs", *bases):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir=wheels", "./source"]
    built = _run([*pip, *build], cwd=folder)
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = (folder / "wheels").iterdir()
    put = _run([*pip, "install", "--no-deps", "--target=site", str(wheel)], cwd=folder)
    assert put.returncode == 0, put.stderr[-2000:]
    return folder / "site"


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(installed, tmp_path):
    settings = {"PYTHONPATH": str(installed), "XLA_FLAGS": ""}

    def cxrjax(*words):
        done = _run(
            [str(installed / "bin" / "cxrjax"), *words], cwd=tmp_path, env=os.environ | settings
        )
        assert done.returncode == 0, (words, done.stderr[-2000:])
        return done

    cxrjax(
        *("build", "--dataset=phantom", "--images=4", "--validation_images=1", "--long_side=96"),
        *("--processes=1", "--out=data"),
    )
    cxrjax("check_records", "data/records/train.jsonl", "--out=check")
    assert "OpenSeadragon contributors" in (
        installed / "cxrjax" / "apps" / "vendor" / "openseadragon.LICENSE.txt"
    ).read_text(encoding="utf-8")
    trained = cxrjax(
        *("train", "--config=configs/vindr_lora.py:phantom", "--workdir=run"),
        *("--config.data.train=data/records/train.jsonl", "--config.data.validation=None"),
        *("--config.data.workers=0", "--config.training.batch_images=1"),
        *("--config.training.epochs=None", "--config.training.steps=3"),
        *("--config.model.unroll=false", "--config.data.packed_buckets=(400,)"),
    )
    for shipped in ("configs/vindr_lora.py", "data/demo_base"):
        found = installed / "cxrjax" / "_bundled" / shipped
        line = f"{shipped}: not in the working folder; the one that ships: {found}"
        assert line in trained.stderr.splitlines()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["command"][0].startswith(str(installed))
    cxrjax(
        *("predict", "--workdir=run", "--questions=data/questions/validation.jsonl"),
        *("--out=answers.jsonl", "--max_answer_tokens=4"),
    )
    cxrjax(
        *("score", "--benchmark=vindr_cxr_vqa", "--references=data/records/validation.jsonl"),
        *("--predictions=answers.jsonl", "--out=scores", "--resamples=10"),
    )
    assert "answers" in json.loads((tmp_path / "scores" / "metrics.json").read_text())
