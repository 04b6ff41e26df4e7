"""The pages are true: links lead somewhere, commands have the flags they are given."""

import argparse
import ast
import importlib
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cxrjax.__main__ import module_of
from cxrjax.commands import plan
from cxrjax.errors import UserError
from cxrjax.paths import hub
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.config_file import load_config
from tests.papers.cases import cases, data

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "data/**/*.md", "launch/*.md")
    for path in ROOT.glob(pattern)
    if "downloads" not in path.parts
)
# First words of commands that nothing here can run, and why.
NOT_RUN = data(__file__)["not_run"]
# What stands for a value that the parser would look at.
PLACEHOLDERS = {"--max_cost=C": "--max_cost=1", "--codec=NAME": "--codec=paligemma"}
_COMMAND = re.compile(
    r"^(python|cxrjax(?! import)|make|pytest|" + "|".join(map(re.escape, NOT_RUN)) + r") "
)


def text_of(path: Path) -> str:
    """A page, or the docstring of a configuration."""
    text = path.read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text


def commands(text: str) -> list[str]:
    """Shell commands of ```bash blocks and of indented blocks; continued lines are joined."""
    found: list[str] = []
    fence = None
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            fence = line.removeprefix("```") if fence is None else None
            continue
        shown = fence == "bash" or (fence is None and line.startswith("    "))
        if shown and _COMMAND.match(line.strip() + " "):
            found += re.split(r" && ", line.strip())
    return found


ALL_COMMANDS = [
    (str(path.relative_to(ROOT)), command)
    for path in [*PAGES, *sorted((ROOT / "configs").glob("*.py"))]
    for command in dict.fromkeys(commands(text_of(path)))
]


def words_of(command: str) -> list[str]:
    """Arguments; of what is optional all, of alternatives the first."""
    words = shlex.split(re.sub(r"[\[\]](?=\s|$)|(?<=\s)\[", "", command), comments=True)
    words = [re.sub(r"^(--\w+=[^|]+)\|.*", r"\1", word) for word in words]
    return [PLACEHOLDERS.get(word, word) for word in words]


class Parsed(Exception):  # noqa: N818 - how the test gets out of a command that does not begin
    def __init__(self, flags: argparse.Namespace, rest: list[str]) -> None:
        super().__init__(flags, rest)
        self.flags, self.rest = flags, rest


def parse(module: str, words: list[str], monkeypatch) -> tuple[argparse.Namespace, list[str]]:
    """What a command's own parser makes of its words, without doing what they say.

    Returns:
        The flags, and the words that were no flags.
    """
    name = module.removeprefix("cxrjax.")
    own = ROOT / "cxrjax" / "commands" / f"{name}.py"  # behind a stub
    command = importlib.import_module(f"cxrjax.commands.{name}" if own.is_file() else module)
    if hasattr(command, "parse_arguments"):
        parsed = command.parse_arguments(words)
        return parsed if isinstance(parsed, tuple) else (parsed, [])
    whole, known = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args

    def parse_args(self, args=None, namespace=None):
        with monkeypatch.context() as inner:
            inner.setattr(argparse.ArgumentParser, "parse_known_args", known)
            flags = whole(self, args, namespace)
        raise Parsed(flags, [])

    def parse_known_args(self, args=None, namespace=None):
        raise Parsed(*known(self, args, namespace))

    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [module, *words])
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
        with pytest.raises(Parsed) as end:
            command.main()
    return end.value.flags, end.value.rest


def check(command: str, monkeypatch) -> None:
    """Fails where a command cannot be what its tool understands."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hub, "fetch_data", Path)
    first, *words = words_of(command)
    if first in NOT_RUN:
        return
    if first == "cxrjax":
        words = ["-m", module_of(words[0]), *words[1:]]
    if first == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words if "=" not in word} <= set(targets)
    elif first == "pytest":
        assert all((ROOT / word).exists() for word in words if not word.startswith("-"))
    elif words[0] != "-m":
        assert (ROOT / words[0]).is_file()
    elif "--list_systems" in words:
        with pytest.raises(SystemExit) as end:
            parse(words[1], words[2:], monkeypatch)
        assert end.value.code == 0
    else:
        flags, rest = parse(words[1], words[2:], monkeypatch)
        config = getattr(flags, "config", None)
        if isinstance(config, str):
            load_config(config, rest)
        else:
            assert not rest


@cases("command")
def test_false_commands_are_noticed(command, monkeypatch, capsys):
    with pytest.raises((AssertionError, SystemExit, UserError, ModuleNotFoundError)):
        check(command, monkeypatch)


def test_commands_of_pages_are_found_and_understood(subtests, monkeypatch):
    text = "x\n\n    make demo # y\n\n```bash\npython -m a \\\n    --b && make c\n```\n\n    no it"
    assert commands(text) == ["make demo # y", "python -m a      --b", "make c"]
    assert words_of("make demo # y") == ["make", "demo"]
    assert words_of("python [--a=b|c] --d=e|f [-g]") == ["python", "--a=b", "--d=e", "-g"]
    assert len(ALL_COMMANDS) > 200
    for page, command in ALL_COMMANDS:
        with subtests.test(f"{page}: {command}"):
            check(command, monkeypatch)


def _planned_and_launched() -> list[str]:
    """Plans of the pages, and the run of docs/pods.md as a plan for the slice it creates."""
    plans = [c for _, c in ALL_COMMANDS if "cxrjax.plan " in c and "--topology=" in c]
    pods = commands(text_of(ROOT / "docs" / "pods.md"))
    (slice_,) = {type_ for words in pods for type_ in re.findall(r" --type=(\S+)", words)}
    (run,) = {words for words in pods if "tpu_vm.sh run " in words}  # once more to resume
    return [*plans, f"{run} --topology={slice_}"]


@pytest.mark.parametrize("command", _planned_and_launched())
def test_batches_of_the_pages_divide_over_their_slices(command, monkeypatch):
    """By formula, which refuses what the compiler would, and training."""
    monkeypatch.chdir(ROOT)
    words = [w for w in words_of(command) if w.startswith(("--config", "--topology"))]
    words = [w for w in words if "gs://" not in w]  # an extra reads them
    plan.main([*words, "--formula"])


def test_the_log_lists_all_and_variants_that_are_named_are_there(subtests):
    listed = re.split(r"(?m)^## .*\]\((log/\w+\.md)\)$", (ROOT / "docs/log.md").read_text())[1:]
    for name, part in zip(listed[::2], listed[1::2], strict=True):
        sections = re.findall(r"(?m)^## (.*)$", (ROOT / "docs" / name).read_text())
        assert re.findall(r"(?m)^- (.*)$", part) == sections, name
    assert set(listed[::2]) == {f"log/{path.name}" for path in (ROOT / "docs/log").iterdir()}
    for named in sorted(_variants() - {"configs/X.py:variant", "configs/X.py:VARIANT"}):
        path, variant = named.split(":")
        with subtests.test(named):
            assert runpy.run_path(str(ROOT / path))["get_config"](variant)


def _variants() -> set[str]:
    """Configurations that pages and recipes name, with their variants."""
    texts = [text_of(path) for path in (*PAGES, *sorted((ROOT / "configs").glob("*.py")))]
    return {found for text in texts for found in re.findall(r"\bconfigs/\w+\.py:\w+", text)}


def _script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_up_to_date_and_whole():
    reference = _script("config_reference")
    page = reference.PAGE.read_text(encoding="utf-8")
    assert page == reference.page(), "run python docs/config_reference.py"
    # The keys of a mixture's sources stand there without dots.
    alone = "benchmark|trainable|missing_data_help"
    listed = re.findall(rf"^\| `(\w+(?:\.\w+)+|{alone})` \|", page, re.M)
    assert sorted(listed) == sorted(flatten(ExperimentConfig().to_json()))
    definitions = _script("figure_tables")
    page = definitions.PAGE.read_text(encoding="utf-8")
    assert page == definitions.page(), "run python docs/figure_tables.py"


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """A copy of the package with CONTRIBUTING.md's diffs applied."""
    folder = tmp_path_factory.mktemp("patched")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cxrjax", folder / "cxrjax", ignore=ignored)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diffs = re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)
    assert len(diffs) == 3
    for diff in diffs:
        done = subprocess.run(
            ["git", "apply", "-"], input=diff, text=True, capture_output=True, cwd=folder
        )
        assert done.returncode == 0, f"CONTRIBUTING.md: {done.stderr}\n{diff}"
    return folder


def _python(folder: Path, *words: str) -> str:
    command = [sys.executable, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # the tests; the package is the folder's
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_data_set_of_contributing_builds(tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m (cxrjax\.build .*) --out=DIR$", text, re.M)
    _python(ROOT, "-m", *command.split(), f"--out={tmp_path}")
    assert (tmp_path / "records" / "test.jsonl").read_text().count("\n") == 3


def test_the_model_and_the_metric_of_contributing_are_known(patched):
    said = _python(
        patched,
        "-c",
        "from cxrjax.models import PRESETS; from cxrjax.papers.vindr_cxr_vqa.figures import LAYOUT;"
        "from cxrjax.evaluation.figure_lines import make_figures;"
        "(line,) = [one for one in LAYOUT.lines if one.name == 'localization/iou_per_image'];"
        "figure = make_figures([line])['strict'][line.name];"
        "print(PRESETS['gemma3_12b'].decoder.width, figure.formula({'strict/iou': 3, 'views': 4}))",
    )
    assert said == "3840 0.75\n"


def test_the_term_of_contributing_is_part_of_the_loss(patched):
    """Its function and its key are all that it takes."""
    said = _python(patched, "-c", _TERM)
    assert said == "lambda_box lambda_confidence\n"


_TERM = """
import jax, numpy
from cxrjax.training import config, loss, objectives
from tests.training.conftest import HiddenModel, random_batch

batch = jax.tree.map(jax.numpy.asarray, random_batch())
model, weights = HiddenModel(batch), {"lambda_box": 0.5, "lambda_confidence": 0.25}
found, figures = loss.multitask_loss(model, batch, weights)
without, _ = loss.multitask_loss(model, batch, {"lambda_box": 0.5})
log_p = jax.nn.log_softmax(model.logits(model.hidden[...]))
sure = float(numpy.sum(jax.numpy.exp(log_p) * log_p, axis=-1)[batch.answer_mask].mean())
numpy.testing.assert_allclose(found - without, 0.25 * sure, rtol=1e-4)
numpy.testing.assert_allclose(numpy.divide(*figures["confidence"]), sure, rtol=1e-4)
training = config.TrainingConfig(lambda_confidence=0.25)
print(*objectives.MultitaskObjective(config.ExperimentConfig(training=training))._weights)
"""


def named_tests(text: str) -> list[tuple[str, str]]:
    """(file, test or "") of each test that a page names; `::name` is of the file before it."""
    found, file = [], ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", text):
        file = path or file
        if path or name:
            found.append((file, name))
    return found


def test_what_security_promises_has_its_tests():
    assert named_tests("`tests/a.py::b`, `::c` and `d`") == [
        ("tests/a.py", "b"),
        ("tests/a.py", "c"),
    ]
    named = named_tests((ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    for file, name in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\b", source, re.M), f"{file}::{name}"


def test_docstrings_and_hooks_are_as_lint_has_them():
    check = runpy.run_path(str(ROOT / "docs/check_docstrings.py"))
    openings = check["pattern"]("# a comment\nWhat\n")
    assert check["refused"]('"""What it does."""', "a.py", openings)
    assert not check["refused"]('"""Whatever it does."""', "a.py", openings)
    with pytest.raises(SystemExit) as end:
        check["main"]()
    assert end.value.code == 0
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile.split("\nlint:")[1].split("\n\n")[0].replace("$(VENV)", ".venv")
    recipe = recipe.replace("$(PY)", ".venv/bin/python")
    linted = [line.strip().removesuffix(" .") for line in recipe.splitlines()[1:]]
    assert [hook["entry"] for hook in repo["hooks"]] == linted
    assert all(hook["language"] == "system" for hook in repo["hooks"])
