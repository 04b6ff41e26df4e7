"""Pictures to begin with, and their truth."""

from cxrjax.pages.demo.rendering import STATISTICS, TrueBox, asked_about, render_examples


def test_examples_are_the_same_every_time_and_know_their_truth(tmp_path):
    examples = render_examples(tmp_path / "a")
    again = render_examples(tmp_path / "b")
    assert [one[1:] for one in examples] == [one[1:] for one in again]
    assert len({one.sha256 for one in examples}) == len(examples)
    assert all(one.path.is_file() and one.truth for one in examples)
    (detect,) = (one for one in examples if one.question == "detect ILD")
    assert [one.label for one in asked_about(detect.truth, detect.question)] == ["ILD", "ILD"]


def test_truth_of_the_findings_that_are_asked_about():
    truth = (TrueBox("ILD", (0, 0, 1, 1)), TrueBox("Cardiomegaly", (0, 0, 0.5, 1)))
    assert "Pneumothorax" in STATISTICS
    assert asked_about(truth, "detect ild") == truth[:1]
    assert asked_about(truth, "What findings are present?") == truth
    assert asked_about(truth, "Is there Pneumothorax?") == ()
