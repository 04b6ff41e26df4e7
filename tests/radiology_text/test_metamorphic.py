"""What a change of a text changes of its reading, over all open sentences (metamorphic.py)."""

import collections
import tomllib

import pytest

from bench.readers import metamorphic

pytestmark = pytest.mark.slow  # 60,000 readings
# Relation -> how often it does not hold yet; python -m bench.readers --metamorphic --write.
NOT_YET = tomllib.loads(metamorphic.NOT_YET.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def checked():
    return list(metamorphic.checks())


def test_every_relation_is_checked_often(checked):
    often = collections.Counter(one.relation for one in checked)
    assert set(often) == set(metamorphic.RELATIONS)
    assert min(often.values()) >= 20


def test_a_change_changes_what_it_should(checked):
    """Strict: what holds now is to be taken out of the list."""
    assert metamorphic.count_broken(checked) == NOT_YET
