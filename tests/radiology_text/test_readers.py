"""The proof around the reader: matching, measures, intervals, the page, and the line of tables."""

import dataclasses
import random
import shutil
import tomllib

import numpy as np
import pytest
from scipy.stats import binomtest

from bench.readers import __main__ as readers
from bench.readers import sentences
from bench.readers.grading import grade, level, rate
from bench.readers.sentences import Label, Sentence
from cxrjax.evaluation.scores import Scores
from cxrjax.paper import benchmark_places, load_benchmark
from cxrjax.radiology_text import error_rates
from cxrjax.radiology_text.assertions import Assertion


def sentence(*labels: str) -> Sentence:
    """Each label as in the files; what it leaves out is present, certain and current."""
    usual = ["", "present", "certain", "current", None]
    parts = (label.split("|") for label in labels)
    return Sentence("a", "f", "text", tuple(Label(*one, *usual[len(one) :]) for one in parts))


def said(*assertions: str) -> list[Assertion]:
    """finding|status|side of each."""
    parts = (one.split("|") for one in assertions)
    return [Assertion(finding, status, side=side or None) for finding, status, side in parts]


def test_a_finding_stands_before_its_kin():
    read = said("lung opacity|absent|", "consolidation|present|")
    graded = grade(sentence("pneumonia", "lung opacity"), read)
    [pair] = graded.pairs
    assert pair.label.finding == pair.read.finding == "lung opacity"
    assert [one.finding for one in graded.missed] == ["pneumonia"]  # consolidation is a sibling
    assert [one.finding for one in graded.extra] == ["consolidation"]
    assert graded.inversions == ["lung opacity: present read as absent"]
    graded = grade(sentence("pneumonia"), said("lung opacity|present|"))
    assert graded.counts("found") == graded.counts("kin") == (1, 1)
    assert not graded.is_right


def test_labels_of_one_finding_are_told_apart_by_side_then_status():
    labels = ("present|certain|current|left", "absent|certain|current|right")
    read = said("pneumothorax|absent|right", "pneumothorax|present|left")
    assert grade(sentence(*(f"pneumothorax|{label}" for label in labels)), read).is_right
    unsided = sentence("pneumothorax|absent", "pneumothorax|present")
    assert grade(unsided, said("pneumothorax|present|", "pneumothorax|absent|")).is_right


def test_what_is_said_again_is_not_extra():
    assert grade(sentence("pneumonia"), said("pneumonia|present|") * 2).is_right
    read = said("pneumonia|present|", "pneumonia|absent|")
    assert len(grade(sentence("pneumonia"), read).extra) == 1


def test_what_is_turned_round():
    for label, read, turned in (
        ("present|certain", ("absent", "likely"), "present read as absent"),
        ("absent|likely", ("present", "likely"), "absent read as present"),
        ("uncertain|unlikely", ("absent", "certain"), ""),
        ("present|likely", ("uncertain", "possible"), ""),
    ):
        [pair] = grade(sentence(f"fracture|{label}"), [Assertion("fracture", *read)]).pairs
        assert pair.inversion == turned
    left = sentence("fracture|present|certain|current|left")
    for side, found in (("right", "left read as right"), ("bilateral", ""), ("", "")):
        [pair] = grade(left, said(f"fracture|present|{side}")).pairs
        assert pair.inversion == found


def test_certainty_is_one_scale():
    scale = [("present", "certain"), ("present", "likely"), ("uncertain", "possible")]
    scale += [("uncertain", "unlikely"), ("absent", "likely"), ("absent", "certain")]
    assert [level(Assertion("fracture", *one)) for one in scale] == list(range(6))


def test_intervals_of_independent_ones_are_wilsons():
    for right, total in ((0, 30), (30, 30), (7, 30)):
        ours = rate([(1, 1)] * right + [(0, 1)] * (total - right))
        theirs = binomtest(right, total).proportion_ci(method="wilson")
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert str(rate([])) == "–"


def test_intervals_of_clusters_are_as_wide_as_the_bootstraps():
    draw = random.Random(3)
    clusters = [(4 if draw.random() < 0.7 else 1, 4) for _ in range(200)]
    rng = np.random.default_rng(0)
    drawn = np.array(clusters)[rng.integers(200, size=(4000, 200))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    ours = rate(clusters)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.01)
    alone = binomtest(ours.right, ours.total).proportion_ci(method="wilson")
    assert high - low > 1.5 * (alone.high - alone.low)


def test_the_errors_in_the_package_are_of_this_reader():
    """After a change of the reader: python -m bench.readers --write."""
    assert {one.file: one for one in readers.measured()} == error_rates.load_error_rates()


def test_tables_that_rest_on_a_reader_say_how_often_it_errs():
    told = {name: load_benchmark(name).layout.read_as for name in benchmark_places()}
    of_answers = dict.fromkeys(("vindr_cxr_vqa", "gemex", "cxr_qba", "own"), "answers_en")
    read = {name: file for name, file in told.items() if file}
    assert read == of_answers | {"vix_ray": "sentences_vi", "grounded_reports": "openi_en"}
    layout = load_benchmark("ms_cxr").layout
    layout = dataclasses.replace(layout, heading="Title", read_as="hard_en")
    bootstrap = dict.fromkeys(("confidence", "method", "resamples", "clusters", "seed"), 1)
    settings = {"bootstrap": bootstrap | {"clustered_by": ["patient"]}, "datasets": []}
    head = layout.head(Scores({}, {}, settings))
    assert f"\n{error_rates.about_reading('hard_en')}\n" in head


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    """Sentences with something turned round, an answer, and one held out."""
    label = "pleural effusion|{}|certain|current|{}"
    (tmp_path / "hard_en.tsv").write_text(
        f"h1\tplain\tNo effusion.\t{label.format('present', '-')}\n"
        f"h2\t<b>\tLeft effusion & <i>more.\t{label.format('present', 'left')}\n"
    )
    (tmp_path / "answers_en_held_out.tsv").write_text(
        "a1\tplain\tIs there an effusion?\tNo.\tno\na2\tplain\tIs there an effusion?\tYes.\tno\n"
    )
    monkeypatch.setattr(sentences, "FOLDER", tmp_path)


def test_the_command(two_files, tmp_path, capsys, monkeypatch):
    readers.main(["--families"])
    printed = capsys.readouterr().out
    assert "answers_en" not in printed
    assert "| turned round | 50.0 (" in printed
    readers.main(["--show=inversions"])
    assert "'No effusion.'" in capsys.readouterr().out
    readers.main(["--held_out"])
    printed = capsys.readouterr().out
    assert "read right" in printed and "Yes." not in printed
    with pytest.raises(SystemExit):
        readers.main(["--held_out", "--show=all"])
    readers.main(["--held_out", "--show=all", "--look"])
    assert "read as yes" in capsys.readouterr().out
    monkeypatch.setattr(readers, "DATA", tmp_path / "rates.toml")
    readers.main(["--write"])
    rates = tomllib.loads((tmp_path / "rates.toml").read_text())
    monkeypatch.setattr(error_rates, "read_packaged", lambda *_: rates)
    error_rates.load_error_rates.cache_clear()
    assert error_rates.about_reading("answers_en") == (
        "Answers are read by rules; on 2 that nobody tuned them on, 50.0 % (9.5 to 90.5) are "
        "read wrongly, 1 turned round."
    )
    unknown = error_rates.about_reading("openi_en")
    assert unknown.endswith("how often wrongly has not been measured.")
    error_rates.load_error_rates.cache_clear()


def test_a_row_that_is_not_by_the_rules_is_named(tmp_path):
    (tmp_path / "hard_en.tsv").write_text("h1\tx\tMass.\tlung mess|present|certain|current|-\n")
    with pytest.raises(ValueError, match=r"hard_en\.tsv:1: 'lung mess' is none of"):
        sentences.read_file(tmp_path / "hard_en.tsv")


@pytest.mark.slow  # Chromium
def test_the_page_in_a_browser(two_files, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium (Debian's package chromium)")
    readers.main([f"--page={tmp_path / 'page.html'}"])
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto((tmp_path / "page.html").as_uri())
        assert tab.inner_text("#count") == "2 shown"
        assert "turned round" in tab.inner_text("article >> nth=0")
        assert tab.inner_text("article >> nth=1 >> .text") == "Left effusionpresent left & <i>more."
        tab.select_option("[name=read]", "right")
        assert tab.inner_text("#count") == "1 shown"
        browser.close()
    assert len(asked) == 1
