"""A model family is one file and its data; what else names it has a reason."""

import dataclasses
import re
from pathlib import Path

import pytest

from cxrjax.models.families import FAMILIES, sizes_of_base
from cxrjax.models.presets import PRESETS
from tests.papers.cases import data

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cxrjax"
# As people write them, in code and in prose.
NAMES = data(__file__)["names"]


_TABLE = (ROOT / "docs/architecture.md").read_text("utf-8").split("these name a model family")[1]
_ROWS = re.findall(r"^\| (`.*?`) \|", _TABLE.split("## ")[0], re.M)
REASONS = tuple(path.strip("` ") for row in _ROWS for path in row.split(","))


@pytest.mark.parametrize("family", NAMES)
def test_a_family_stands_in_its_files_alone(family):
    pattern = re.compile(NAMES[family], re.IGNORECASE)
    named = {
        file.relative_to(PACKAGE).as_posix()
        for ending in ("py", "toml", "j2", "html", "js")
        for file in PACKAGE.rglob(f"*.{ending}")
        if pattern.search(file.read_text("utf-8"))
    }
    own = {name for name in named if name.startswith("models/families/")}
    assert f"models/families/{family}.py" in own and f"models/families/{family}.toml" in own
    others = sorted(name for name in named - own if not name.startswith(REASONS))
    assert not others, "say it in the words of what is computed, or give a reason in the table"


def test_bases_of_before_families_were_named_are_read(subtests):
    """Their `sizes` name the kind of a tower, and no family."""
    for preset, sizes in PRESETS.items():
        family = FAMILIES[sizes.family]
        if family.before is None or not preset.startswith("tiny"):
            continue
        older = dataclasses.asdict(sizes)
        del older["family"], older["second_image"]
        for name in (*family.tower, "side_by_side"):
            older["vision"].pop(name, None)
        older["vision"]["kind"] = family.before[0]
        with subtests.test(preset):
            assert sizes_of_base(older) == sizes
            with pytest.raises(ValueError, match="family is 'other', expected one of paligemma"):
                sizes_of_base(older | {"family": "other"})
