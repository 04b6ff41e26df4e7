"""A model family is one file and its data; what else names it has a reason."""

import dataclasses
import re
from pathlib import Path

import pytest

from cxrjax.family_tables import family_tables
from cxrjax.models.families import FAMILIES, sizes_of_base
from cxrjax.models.presets import PRESETS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cxrjax"
# As people write them, in code and in prose.
NAMES = {
    "paligemma": r"paligemma",
    "gemma3": r"gemma[ _-]?3|medgemma",
    "gemma4": r"gemma[ _-]?4",
    "llava": r"llava",
    "internvl": r"internvl",
    "qwen_vl": r"qwen",
    "smolvlm": r"smolvlm|idefics",
}


def _reasons():
    """The files and folders of the table in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = text.split("these name a model family, each for a reason")[1].split("## ")[0]
    return [path for row in re.findall(r"^\| `(.*?) \|", rows, re.M) for path in _paths(row)]


def _paths(row):
    return [path.strip("` ") for path in row.split(",")]


@pytest.mark.parametrize("family", NAMES)
def test_a_family_stands_in_its_files_alone(family):
    pattern, allowed = re.compile(NAMES[family], re.IGNORECASE), _reasons()
    named = {
        file.relative_to(PACKAGE).as_posix()
        for ending in ("py", "toml", "j2", "html", "js")
        for file in PACKAGE.rglob(f"*.{ending}")
        if pattern.search(file.read_text("utf-8"))
    }
    own = {name for name in named if name.startswith("models/families/")}
    assert f"models/families/{family}.py" in own and f"models/families/{family}.toml" in own
    others = sorted(name for name in named - own if not name.startswith(tuple(allowed)))
    assert not others, "say it in the words of what is computed, or give a reason in the table"


def test_every_reason_is_needed():
    pattern = re.compile("|".join(NAMES.values()), re.IGNORECASE)
    for path in _reasons():
        files = (PACKAGE / path).rglob("*.*") if path.endswith("/") else [PACKAGE / path]
        texts = [file.read_text("utf-8") for file in files if file.suffix in (".py", ".toml")]
        assert any(map(pattern.search, texts)), f"{path} names no family: shorten the table"


def test_the_names_that_families_give_are_there(subtests):
    chats, rules = family_tables("chat"), family_tables("resize")
    for kind, family in FAMILIES.items():
        with subtests.test(kind):
            assert family.kind == kind and (family.resize is None or family.resize in rules)
    for preset, sizes in PRESETS.items():
        with subtests.test(preset):
            assert sizes.family in FAMILIES
    prompts = {entry.get("prompt") for entry in chats.values()} - {None, ""}
    assert prompts <= chats.keys()


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
