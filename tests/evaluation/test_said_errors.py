"""Comparisons with earlier images, and errors by clinical weight, by hand on short texts."""

import pytest

from cxrjax.evaluation.text_scores.assertion_errors import (
    COLUMNS,
    clinical_weight,
    count_said,
    weighted_errors,
)
from cxrjax.radiology_text.assertions import Assertion
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.reading import said_now
from tests.evaluation import made

CASES = made.cases_of(__file__)

REFERENCE = (
    "Large right pneumothorax. Small left pleural effusion, unchanged. Calcified aorta. "
    "No fracture."
)


def _errors(said, true, language="en"):
    found = weighted_errors(said_now(said, language), said_now(true, language))
    return {name: weight for name, weight in found.items() if weight}


@pytest.mark.parametrize(("said", "errors"), CASES["weighted_errors"])
def test_errors_weigh_as_much_as_their_findings(said, errors):
    assert _errors(said, REFERENCE) == pytest.approx(errors)


def test_general_names_and_what_else_is_there_are_weighed():
    """Who says opacity of a consolidation is not wrong, and has not said consolidation."""
    assert _errors("Lung opacity.", "Consolidation.") == {"missed": 0.5}
    assert _errors("Consolidation.", "Lung opacity.") == {"false": 0.5}
    assert not _errors("Lung opacity. Consolidation.", "Consolidation.")
    both = [Assertion(name, "present") for name in ("lung opacity", "consolidation")]
    assert weighted_errors(both, [])["false"] == 0.5
    # What else is known to be there is no false finding.
    said = said_now("Right pneumothorax. Pneumonia.")
    assert count_said(said, (), ["pneumothorax"])["weighted/false"] == 0.5
    assert count_said(said, ())["weighted/false"] == 1.5
    assert count_said((), (), ["pneumothorax"])["weighted/missed"] == 0
    from cxrjax.files import read_packaged

    table = read_packaged("cxrjax.radiology_text", "reference/clinical_weights.toml")
    listed = [name for names in table["levels"].values() for name in names]
    assert sorted(listed) == sorted(load_definitions().findings)
    assert clinical_weight("pneumothorax") > clinical_weight("cardiomegaly") > 0
    assert clinical_weight("tortuous aorta") == 0 < clinical_weight("what nobody knows")


@pytest.mark.parametrize(("said", "true", "counts", "language"), CASES["comparisons"])
def test_comparisons_are_pairs_of_finding_and_change(said, true, counts, language):
    found = count_said(said_now(said, language), said_now(true, language))
    assert [found[f"temporal/{name}"] for name in ("tp", "fp", "fn")] == counts
    assert found["temporal/texts"] == any(counts)
    assert found.keys() == set(COLUMNS)


def test_changes_are_right_where_finding_side_and_word_agree():
    true = (
        "The left pleural effusion has increased. The right nodule is unchanged. New left cavity."
    )
    said = true.replace("increased", "decreased").replace("New left", "New right")
    found = count_said(said_now(said), said_now(true)).items()
    counts = {name.removeprefix("changes/"): n for name, n in found if "changes/" in name and n}
    right = {"all/right": 1, "named/right": 1, "unchanged/right": 1}
    assert counts == {"all": 3, "named": 2, "new": 1, "unchanged": 1, "worse": 1} | right
