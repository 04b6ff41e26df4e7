"""Articles and numbers of classes in sentences."""

from pathlib import Path

from cxrjax.radiology_text.nouns import forms

LINES = Path(__file__).with_name("nouns.tsv").read_text(encoding="utf-8").splitlines()


def test_names_of_classes_take_their_article_and_their_number(subtests):
    for name, one, two in (line.split("\t") for line in LINES):
        with subtests.test(name):
            assert (forms(name)["a_finding"], forms(name, 2)["n_units"]) == (one, two)
            assert forms(name)["n_units"].startswith("1 ") and forms(name)["n_are"] == "is"
