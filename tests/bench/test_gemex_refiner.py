"""How a refiner of GEMeX is held against labelled sentences, and how these are drawn."""

import json

import pytest

from bench.gemex_refiner import Accuracy, main, measure, read_labels
from cxrjax.errors import UserError
from cxrjax.papers.gemex.construct.refine import RuleRefiner
from tests.papers.cases import cases, data


def test_accuracy_on_the_labelled_sentences_and_of_a_wrong_refiner(sample, capsys):
    labels = sample.parent / "labelled_sentences.jsonl"
    accuracies, wrong = measure(RuleRefiner(), read_labels(labels))
    total = sum(accuracy.total for accuracy in accuracies.values())
    assert set(accuracies) == set(range(7)) and total >= 70
    assert len(wrong) / total < 0.05
    main(["--labels", str(labels)])
    printed = capsys.readouterr().out
    assert f"of   {total}" in printed and "rule 4 (effusion by size)" in printed

    class Nothing(RuleRefiner):
        def refine(self, reports):
            for report, refinement in super().refine(reports):
                yield report, refinement._replace(sentences=[])

    accuracies, _ = measure(Nothing(), read_labels(sample.parent / "labelled_sentences.jsonl"))
    assert accuracies[1].value == 1 and accuracies[4].value == 0


def test_wilsons_interval_and_truth_of_phantom_studies(tmp_path):
    """Newcombe 1998 (Statistics in Medicine 17:857), Table I: 81 of 263."""
    low, high = Accuracy(81, 263).interval
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    path = tmp_path / "studies.jsonl"
    path.write_text(json.dumps(data(__file__)["study"]))
    accuracies, wrong = measure(RuleRefiner(), read_labels(path))
    assert accuracies == {None: Accuracy(1, 1)} and wrong == []


@cases("line, message")
def test_unusable_labels(tmp_path, line, message):
    path = tmp_path / "labels.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=message):
        read_labels(path)


def test_sentences_are_drawn_from_the_test_split_to_be_labelled(sample, tmp_path, capsys):
    out = tmp_path / "labels.jsonl"
    main([f"--sample={sample}", "--reports=5", f"--labels={out}"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    table = (sample / "mimic-cxr-2.0.0-split.csv").read_text().splitlines()
    (test,) = [line.split(",")[0] for line in table if line.endswith(",test")]
    assert rows and all(row["id"].startswith(test) and row["rule"] is None for row in rows)
    # As drawn it is what the rules say, so that they score in full until somebody corrects it.
    main(["--labels", str(out)])
    assert f"{len(rows)} of   " in capsys.readouterr().out.splitlines()[-1]
    with pytest.raises(UserError, match="may hold labels"):
        main([f"--sample={sample}", f"--labels={out}"])
    with pytest.raises(UserError, match="no scene graphs of the test split"):
        main([f"--sample={tmp_path}", f"--labels={tmp_path / 'none.jsonl'}"])
