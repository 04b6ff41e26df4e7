"""The two commands: a page of samples, and the rate."""

import pytest
from PIL import Image

from bench import phantom_speed as benchmark
from cxrjax.cli import run
from cxrjax.simulation.phantoms import sample_page


def test_sample_page(tmp_path):
    plain, framed = tmp_path / "plain.png", tmp_path / "framed.png"
    flags = ["--rows=1", "--columns=2", "--long_side=96", "--abnormal", "--seed=1"]
    sample_page.main([f"--out={plain}", *flags])
    sample_page.main([f"--out={framed}", "--boxes", *flags])
    with Image.open(plain) as first, Image.open(framed) as second:
        assert first.size == second.size == (192, 96)
        assert first.tobytes() != second.tobytes()


def test_unwritable_page_is_one_line(tmp_path, capsys):
    missing = tmp_path / "no" / "page.png"
    flags = [f"--out={missing}", "--rows=1", "--columns=1", "--long_side=64"]
    with pytest.raises(SystemExit) as ended:
        run(lambda: sample_page.main(flags))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and str(missing) in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("main", [sample_page.main, benchmark.main])
def test_unusable_size(main, tmp_path, capsys):
    out = [f"--out={tmp_path / 'x.png'}"] if main is sample_page.main else []
    with pytest.raises(SystemExit) as error:
        main([*out, "--long_side=3"])
    assert error.value.code == 2
    assert "at least 64" in capsys.readouterr().err


def test_benchmark_prints_a_rate(capsys):
    benchmark.main(["--long_side=64", "--count=2"])
    out = capsys.readouterr().out
    assert out.count("images/s") == 2 and "long_side=64" in out
