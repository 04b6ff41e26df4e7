"""The sentences read by hand: ids and verdicts alone, and the figures that the card has of them."""

import csv
import re

import pytest

COLUMNS = "sentence_id observations wrong_entity_or_polarity wrong_certainty wrong_place"
COLUMNS = [*COLUMNS.split(), "wrong_attribute", "missed"]


@pytest.fixture
def rows(sample):
    with open(sample.parent / "hand_check.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_hundred_sentences_by_their_ids(rows):
    assert list(rows[0]) == COLUMNS
    ids = [row["sentence_id"] for row in rows]
    assert len(set(ids)) == len(ids) == 100
    assert all(re.fullmatch(r"CXR\d+/S\d\d", name) for name in ids)
    # No words of a report.
    assert all(row[name].isdecimal() for row in rows for name in COLUMNS[1:])


def wilson(right, total):
    """95 % interval of a share, in percent, by Wilson's formula."""
    z, share = 1.959964, right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    half /= 1 + z * z / total
    return 100 * (middle - half), 100 * (middle + half)


def test_the_card_has_its_figures(rows, sample):
    card = " ".join((sample.parent / "README.md").read_text().split())
    total = {name: sum(int(row[name]) for row in rows) for name in COLUMNS[1:]}
    observations = total["observations"]
    found = observations - total["wrong_entity_or_polarity"]
    certain = found - total["wrong_certainty"]
    every = certain - total["wrong_place"] - total["wrong_attribute"]
    assert f"Of {observations} observations, finding and polarity were right in {found}" in card
    low, high = wilson(found, observations)
    assert f"({100 * found / observations:.1f} %, 95 % interval {low:.1f} to {high:.1f}" in card
    assert f"certainty too in {certain}, place and modifiers as well in {every}" in card
    low, high = wilson(every, observations)
    assert f"({100 * every / observations:.1f} %, {low:.1f} to {high:.1f})" in card
    assert f"{total['missed']} were missed" in card
