"""The flags of `build`: each belongs to a data set, which its help and its errors name."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax.cli import run
from cxrjax.commands.build import main, parse_arguments
from cxrjax.errors import UserError
from cxrjax.paper import find_paper, load_papers
from cxrjax.records_io.builder import Builder, BuildOptions

ROOT = Path(__file__).parents[1]
BUILT = [paper.name for paper in load_papers() if paper.builder]
COMMON = {"out", "seed", "processes", "strict"}


def _help(capsys, *words: str) -> str:
    with pytest.raises(SystemExit, match=r"^0$"):
        parse_arguments([*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("dataset", BUILT)
def test_help_of_a_data_set_shows_its_flags_alone(dataset, capsys):
    builder = find_paper(dataset).part("builder")
    assert issubclass(builder, Builder) and issubclass(builder.options_class, BuildOptions)
    shown = _help(capsys, f"--dataset={dataset}")
    assert ("--lean" in shown) == (dataset == "cxr_qba")
    assert ("--conspicuity" in shown) == (dataset in ("phantom", "vix_ray_synthetic"))
    assert ("--base_url" in shown) == (dataset in ("cxr_qba", "gemex", "vindr_cxr_vqa"))
    without = ("phantom", "phantom_studies", "vix_ray_synthetic")
    assert ("--source" in shown) == (dataset not in without)
    assert all(f"--{flag}" in shown for flag in COMMON)


def test_help_lists_data_sets_and_common_flags(capsys):
    shown = _help(capsys)
    assert all(f"  {name} " in shown for name in BUILT)
    assert all(f"--{flag}" in shown for flag in (*COMMON, "source", "dataset"))
    assert "--lean" not in shown


def test_help_takes_less_than_a_second_of_processor_time():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "cxrjax.build", "--help"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_a_flag_of_another_data_set_is_told_whose_it_is(tmp_path, capsys):
    told = (
        "--dataset=phantom: --coord_format belongs to --dataset=gemex; "
        "--lean belongs to --dataset=cxr_qba"
    )
    words = ["--dataset=phantom", "--lean", "--coord_format=xywh", f"--out={tmp_path}"]
    with pytest.raises(SystemExit, match=r"^2$"):
        run(lambda: main(words))
    assert capsys.readouterr().err.splitlines() == [f"error: {told}"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="--sizes belongs to --dataset=sizes and vindr_cxr_vqa"):
        main(["--dataset=gemex", "--source=x", "--out=y", "--sizes=z"])
    with pytest.raises(UserError, match="--model belongs to --dataset=cxr_qba and gemex and vind"):
        main(["--dataset=ms_cxr", "--source=x", "--out=y", "--model=m"])


@pytest.mark.parametrize("dataset", ["shards", "tfds"])
def test_what_only_writes_a_build_anew_refuses_flags_that_decide_nothing(dataset):
    told = "seed decides nothing; --processes decides nothing; --strict decides nothing"
    flags = ["--source=x", "--out=y", "--seed=3", "--processes", "2", "--strict"]
    with pytest.raises(UserError, match=f"--dataset={dataset}: --{told}"):
        main([f"--dataset={dataset}", *flags])
    parse_arguments([f"--dataset={dataset}", "--source=x", "--out=y"])


def test_unusable_flags_end_with_code_2(capsys):
    for words, told in {
        "--dataset=phantom --out=x --image_format=gif": "gif",
        "--dataset=phantom --out=x --imag=3": "--imag",
        "--dataset=phantom --out=x --images=many": "many",
        "--dataset=none --out=x": "none",
        "--out=x": "--dataset",
    }.items():
        with pytest.raises(SystemExit, match=r"^2$"):
            parse_arguments(words.split())
        assert told in capsys.readouterr().err


def test_missing_flags_and_values_out_of_range_are_told_in_one_line():
    for words, told in {
        "--dataset=phantom": "--dataset=phantom needs --out",
        "--dataset=gemex --out=x": "--dataset=gemex needs --source",
        "--dataset=sizes --out=x --source=y": "--dataset=sizes needs --sizes",
        "--dataset=phantom --out=x --images=0": "--images=0",
    }.items():
        with pytest.raises(UserError, match=told):
            parse_arguments(words.split())


def test_flags_reach_their_options():
    words = ["--dataset=vindr_cxr_vqa", "--source=a", "--out", "b", "--questions=dense"]
    words += ["--seed=3", "--strict", "--generator=language_model", "--dry_run", "--price_in=1.5"]
    options = parse_arguments(words).options
    assert (options.source, options.out, options.seed) == (Path("a"), Path("b"), 3)
    assert options.strict and options.questions == "dense" and options.mix == "released"
    assert options.client.dry_run and options.client.price_in == 1.5
    assert not options.client.text_only
