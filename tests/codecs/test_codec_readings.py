"""Texts that are whole, broken or nearly right, read strictly and leniently: readings.toml."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cxrjax.codecs import CODECS

TABLES = tomllib.loads(Path(__file__).with_name("readings.toml").read_text("utf-8"))


@pytest.mark.parametrize(
    "table", TABLES["reading"], ids=lambda table: f"{table['codec']}-{table['size'][1]}"
)
def test_texts_are_read_as_the_table_says(subtests, table):
    known = table.get("boxes", {})
    for text, *outcomes in table["rows"]:
        for strict, outcome in ((False, outcomes[0]), (True, outcomes[-1])):
            with subtests.test(text=text, strict=strict):
                read = CODECS[table["codec"]].decode(text, *table["size"], strict=strict)
                boxes = [known[word] for word in outcome.split() if word in known]
                np.testing.assert_allclose(
                    read.boxes, np.reshape(boxes, (-1, 4)), atol=table.get("tolerance", 1e-6)
                )
                failures = [failure.category for failure in read.failures]
                assert failures == [word for word in outcome.split() if word not in known]


def test_fractions_in_a_notation_that_counts_to_more_are_nobody_knows_what(subtests):
    for name, text in TABLES["fractions"]:
        with subtests.test(name=name):
            for strict, category in ((False, "ambiguous_scale"), (True, "malformed")):
                read = CODECS[name].decode(f"It is at {text}.", 800, 600, strict=strict)
                assert not len(read.boxes)
                assert [failure.category for failure in read.failures] == [category]
            # Numbers of the right size may have decimals all the same.
            written = re.sub(
                r"[01]\.[0-9]+", lambda number: f"{float(number[0]) * 90 + 0.5:.2f}", text
            )
            assert len(CODECS[name].decode(written, 800, 600).boxes) == 1
