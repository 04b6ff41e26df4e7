"""Agreement of judges with people and each other, checked against scipy and scikit-learn."""

import json
import random

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

from bench import judge_agreement as agreement
from cxrjax.errors import UserError
from tests.language_model.conftest import CASES


def judgements(path, marks, system="s"):
    lines = [
        {"task": "relative_score", "system": system, "question_id": f"q{n}", "answer": mark}
        for n, mark in enumerate(marks)
    ]
    lines.append({"task": "facts", "system": system, "question_id": "q0"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def people(path, marks):
    path.write_text("question_id,mark\n" + "".join(f"q{n},{mark}\n" for n, mark in marks))
    return path


def test_figures_are_those_of_scipy_and_scikit_learn(tmp_path, capsys):
    rng = random.Random(0)
    human = [rng.randint(1, 10) for _ in range(60)]
    judged = [min(10.0, max(1.0, mark + rng.choice([-1.5, 0, 0.5, 2]))) for mark in human]
    one = judgements(tmp_path / "j.jsonl", [*judged, None])
    two = people(tmp_path / "p.csv", [*enumerate(human), (99, 3)])
    out = tmp_path / "agreement.json"
    agreement.main([f"--marks={one}", f"--marks={two}", f"--out={out}"])
    found = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert found["n"] == 60
    assert found["left_out"].pop("only_second") == found["left_out"].pop("failed_first") == 1
    assert found["left_out"] == {"only_first": 0, "failed_second": 0}
    assert found["spearman"] == pytest.approx(scipy.stats.spearmanr(judged, human).statistic)
    assert found["kendall"] == pytest.approx(scipy.stats.kendalltau(judged, human).statistic)
    how = {"weights": "quadratic", "labels": range(1, 11)}
    expected = cohen_kappa_score(np.rint(judged).astype(int), human, **how)
    assert found["kappa"] == pytest.approx(expected)
    assert found["kappa_low"] < found["kappa"] < found["kappa_high"]
    assert found["mean_difference"] == pytest.approx(np.mean(human) - np.mean(judged))


def test_undefined_is_null_and_bad_marks_are_refused(tmp_path, capsys, subtests):
    one = judgements(tmp_path / "j.jsonl", [5, 5])
    two = people(tmp_path / "p.csv", [(0, 5), (1, 5)])
    agreement.main([f"--marks={one}", f"--marks={two}"])
    found = json.loads(capsys.readouterr().out)
    assert found["spearman"] is None and found["kappa"] is None and found["n"] == 2
    assert np.isnan(agreement.rater_agreement([], []).kappa)
    for content, message in CASES["bad_marks"]:
        with subtests.test(message):
            one = judgements(tmp_path / "j.jsonl", [5])
            two = tmp_path / "p.csv"
            two.write_text(content)
            with pytest.raises(UserError, match=message):
                agreement.main([f"--marks={one}", f"--marks={two}"])


def test_bad_files(tmp_path):
    one = judgements(tmp_path / "j.jsonl", [5])
    wrong = tmp_path / "w.jsonl"
    wrong.write_text('{"question_id": "q0"}\n')
    with pytest.raises(UserError, match=r"w.jsonl:1: no judgement"):
        agreement.read_marks(wrong)
    with pytest.raises(UserError, match=r"cannot (be )?read"):
        agreement.read_marks(tmp_path / "absent.csv")
    (tmp_path / "latin.csv").write_bytes(b"question_id,mark\nq\xe9,5\n")
    with pytest.raises(UserError, match="not UTF-8"):
        agreement.read_marks(tmp_path / "latin.csv")
    several = tmp_path / "several.jsonl"
    several.write_text(one.read_text() + one.read_text().replace('"s"', '"t"'))
    with pytest.raises(UserError, match="add a column system"):
        agreement.main([f"--marks={several}", f"--marks={people(tmp_path / 'p.csv', [(0, 5)])}"])
