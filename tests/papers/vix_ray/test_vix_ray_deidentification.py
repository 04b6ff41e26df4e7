"""What is flagged as identifying, and what looks like it and is not."""

import unicodedata
from pathlib import Path

from cxrjax.papers.vix_ray.deidentification import find_identifiers

# Of each line the kind of what is identifying, or none, and a text.
TEXTS = Path(__file__).with_name("identifiers.tsv").read_text(encoding="utf-8").splitlines()


def test_what_identifies_is_flagged_at_its_place_and_nothing_else(subtests):
    assert len(TEXTS) == 51
    for kind, text in (line.split("\t") for line in TEXTS):
        for form in ("NFC", "NFD"):
            with subtests.test(text, form=form):
                told = text if kind == "none" else f"Bóng tim to. {text}."
                found = find_identifiers(unicodedata.normalize(form, told))
                assert [identifier.kind for identifier in found] == [kind] * (kind != "none")
    text = "BN Trần Thị Hoa, 0912345678"
    found = find_identifiers(text)
    assert [text[f.start : f.end] for f in found] == ["Trần Thị Hoa", "0912345678"]
