"""The drawing is of the code: every part is in it, and imports point down."""

import ast
import collections
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import import_graph
from tests.border_watch import bare_parsers
from tests.papers.cases import cases

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cxrjax"


def _drawing():
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "docs" / "draw_architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DRAWING = _drawing()
# Part (folder or module, without ending) -> floor, 0 at the bottom.
FLOOR_OF = {
    part.rstrip("/").removesuffix(".py"): height
    for height, floor in enumerate(reversed(DRAWING.FLOORS))
    for part in floor.parts
}
# Modules of five lines above all floors, which `python -m` starts.
STUBS = {path.stem for path in (PACKAGE / "commands").glob("*.py")} - {"__init__"} | {"__main__"}
TOP = len(DRAWING.FLOORS)


def parts() -> set[str]:
    """Returns what the package consists of."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return folders | {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}


def floor_of(part: str) -> int:
    return TOP if part in STUBS else FLOOR_OF[part]


def imports(source: str) -> set[str]:
    """Parts of the package that a module's source imports, at the top or within functions."""
    split = [name.split(".") for name in import_graph.imported(source)]
    return {name[1] for name in split if name[0] == "cxrjax" and len(name) > 1}


def edges() -> dict[tuple[str, str], str]:
    """(part, part that it imports) -> a file that does."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imports(file.read_text(encoding="utf-8")):
            if other != part and other in parts():
                found[part, other] = str(file.relative_to(ROOT))
    return found


def test_every_part_that_exists_is_drawn_and_every_drawn_one_exists():
    for floor in DRAWING.FLOORS:
        for part in floor.parts:
            path = PACKAGE / part
            assert path.is_dir() if part.endswith("/") else path.is_file(), part
    left_out = parts() - set(FLOOR_OF) - STUBS
    assert not left_out, f"put {left_out} on a floor in docs/draw_architecture.py"
    assert DRAWING.SVG.read_text(encoding="utf-8") == DRAWING.draw(), (
        "run python docs/draw_architecture.py"
    )


def test_commands_have_stubs_and_slow_cases_are_tests():
    assert parts() >= STUBS
    for name in STUBS - {"__main__"}:
        assert len((PACKAGE / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 7
    found = {file: edge for edge, file in edges().items() if edge[1] in STUBS}
    assert not found, f"import these from cxrjax.commands: {found}"
    for case in (ROOT / "tests/slow_cases.txt").read_text(encoding="utf-8").splitlines():
        file, function = case.partition("[")[0].split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"tests/slow_cases.txt: {case} is gone"


def test_imports_point_down_and_metrics_know_boxes_alone():
    up = {edge: file for edge, file in edges().items() if floor_of(edge[0]) < floor_of(edge[1])}
    assert not up, f"these import from a floor above: {up}"
    assert {other for part, other in edges() if part == "metrics"} == {"boxes"}


def test_papers_do_not_import_each_other():
    """They share `sources/`."""
    papers = {path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py")}
    for file in sorted((PACKAGE / "papers").glob("*/**/*.py")):
        own = file.relative_to(PACKAGE / "papers").parts[0]
        text = file.read_text(encoding="utf-8")
        named = set(re.findall(r"cxrjax\.papers\.(\w+)", text)) & papers
        assert named <= {own, "sources"}, f"{file} imports {named - {own}}"


def test_files_outside_that_name_a_data_set_are_listed_with_a_reason():
    pages = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    reasons = pages.split("each for a reason:")[1].split("\n\n")[1]
    listed = set(re.findall(r"`([\w/.]+)`", reasons))
    found = set()
    for file in PACKAGE.rglob("*"):
        name = file.relative_to(PACKAGE)
        if name.parts[0] in ("papers", "simulation") or "__pycache__" in name.parts:
            continue
        if file.is_file() and re.search(
            b"(?i)vindr_cxr|gemex|cxr_qba|vix_ray|ms_cxr", file.read_bytes()
        ):
            found.add(str(name))
    assert found == listed


_CHOSEN = """
import sys
from cxrjax.api import training_run
from cxrjax.training import loop
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.policy_config import PolicyConfig
from cxrjax.training.objectives import objective_of, policy_observers, rollouts_of
for kind in ("none", "grpo"):
    config = ExperimentConfig(rl=PolicyConfig(kind=kind))
    chosen = objective_of(config), policy_observers(config.rl, print), rollouts_of(config, None)
    print(kind, any(name.startswith("cxrjax.training.rl") for name in sys.modules))
"""


def test_supervised_training_imports_no_reinforcement_learning():
    """Where it is imported at all: what chooses, the rewards of answer pairs, and the planner."""
    naming = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if re.search(r"cxrjax\.training\.rl\b", file.read_text(encoding="utf-8"))
        and file.parent != PACKAGE / "training/rl"
    }
    allowed = {"evaluation/answer_pairs.py", "apps/planner/program.py"}
    assert naming == {"training/objectives.py", *allowed}
    ran = subprocess.run([sys.executable, "-c", _CHOSEN], capture_output=True, text=True)
    assert ran.stdout == "none False\ngrpo True\n", ran.stderr


def test_a_class_name_means_one_thing():
    homes = collections.defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(ROOT)))
    assert homes["QARecord"] == ["cxrjax/records.py"]
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert not shared, f"give each its own name: {shared}"


def test_a_floor_has_no_circle():
    below = collections.defaultdict(set)
    for part, other in edges():
        if floor_of(part) == floor_of(other):
            below[part].add(other)

    def reached(part, seen):
        for other in below[part] - seen:
            seen.add(other)
            reached(other, seen)
        return seen

    for part in list(below):
        assert part not in reached(part, set()), f"{part} imports itself through {below[part]}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import cxrjax.models.vlm", {"models"}),
        ("from cxrjax import boxes", {"boxes"}),
        ("def f():\n    from cxrjax.training.loop import train", {"training"}),
        ("import numpy", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source, found):
    assert imports(source) == found


@cases("changed, reached, not_reached")
def test_a_change_reaches_the_tests_that_can_see_it(changed, reached, not_reached):
    found = import_graph.affected([changed])
    assert f"tests/{reached}" in found
    assert f"tests/{not_reached}" not in found


# Bare parsers outside of the border: file -> what it names, and why that is sound.
ALLOWED = {
    "training/config_file.py": ({"validate_json"}, "a text that it has written itself"),
    "__main__.py": ({"read_text"}, "our own modules, for their first lines"),
    "paths/buckets.py": ({"read_bytes", "open"}, "objects as they are, for whoever reads them"),
    "paths/__init__.py": ({"open"}, "what is copied as it is"),
    "codecs/medgemma.py": ({"json.loads"}, "what a pattern has matched whole"),
    "files.py": (
        {"read_text", "tomllib.loads", "open"},
        "what is part of the package; a descriptor that is open already",
    ),
    "images/decode.py": ({"PIL.Image.open"}, "what _checked has measured"),
    "language_model/client.py": (
        {"json.JSONDecoder"},
        "what was refused already, for the words to refuse it in",
    ),
    "papers/cxr_qba/study_files.py": ({"zipfile.ZipFile"}, "an archive that is written, not read"),
    "records.py": ({"model_validate_json"}, "what check_json has passed"),
}


def test_foreign_bytes_pass_the_border():
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if not name.startswith("untrusted/"):
            bare = list(bare_parsers(file.read_text(encoding="utf-8")))
            allowed, _ = ALLOWED.get(name, (set(), ""))
            assert allowed <= {what for _, what in bare}, f"{name}: allowed, and not there: shorten"
            found |= {f"{name}:{line}": what for line, what in bare if what not in allowed}
    assert not found, f"read these through cxrjax.untrusted or cxrjax.files: {found}"


@cases("source, found")
def test_a_bare_parser_is_found(source, found):
    assert [what for _, what in bare_parsers(source)] == found


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_the_pages_name_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:cxrjax|tests|docs|configs|launch|data)/[\w./]*)`", text))
    assert named
    for name in named:
        assert (ROOT / name).exists(), f"{page} names {name}"
