"""Pages of samples of each kind, and the rates of rendering."""

import pytest

from bench import simulation_speed
from cxrjax.cli import run
from cxrjax.commands import simulation_samples
from cxrjax.errors import UserError
from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions
from tests.papers.cases import cases
from tests.simulation.rendered_chest import write_folder


def page(tmp_path, *flags: str) -> str:
    out = tmp_path / "page.html"
    simulation_samples.main([*flags, f"--out={out}"])
    return out.read_text()


def test_phantoms_and_lesions(tmp_path):
    flags = ["--dataset=phantom", "--count=6", "--long_side=96", "--seed=1"]
    text = page(tmp_path, *flags)
    assert text.count("<img ") == 6 and 'class="key"' in text
    source = write_folder(tmp_path / "source", 4)
    flags = ["--dataset=grafts", f"--source={source}", "--count=2", "--strengths", "1"]
    text = page(tmp_path, *flags, "--classes", "Nodule/Mass")
    assert text.count("<img ") == 6 and "Synthetic lesion, real radiograph" in text
    with pytest.raises(UserError, match="expected some of Aortic enlargement"):
        page(tmp_path, *flags, "--classes", "Mass")


def test_studies(tmp_path):
    StudiesBuilder(StudiesOptions(tmp_path / "built", 2, long_side=96)).build()
    flags = ["--dataset=phantom_studies", f"--source={tmp_path / 'built'}"]
    text = page(tmp_path, *flags)
    assert text.count("<h2>") == 2 and text.count("<img ") == 4
    assert "aortic arch</span>" in text and "FINAL REPORT" in text
    with pytest.raises(UserError, match="--source"):
        page(tmp_path, flags[0], f"--source={tmp_path}")


def test_unwritable_page_is_one_line(tmp_path, capsys):
    missing = tmp_path / "no"
    flags = ["--dataset=phantom", "--count=1", "--long_side=64"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: page(missing, *flags))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and str(missing) in said
    assert len(said.strip().splitlines()) == 1


@cases("flags, said")
def test_unusable_flags(flags, said, capsys):
    with pytest.raises(SystemExit) as ended:
        simulation_samples.main([*flags, "--out=x.html"])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_benchmark_prints_rates(capsys):
    simulation_speed.main(["--long_side=128", "--count=2"])
    out = capsys.readouterr().out
    assert out.count("images/s") == 3 and "long_side=128" in out
    with pytest.raises(SystemExit):
        simulation_speed.main(["--long_side=3"])
