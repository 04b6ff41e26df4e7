"""Entry points end in exit codes; users see one line, bugs keep their traceback."""

import subprocess
import sys

import pytest

from cxrjax.cli import run
from cxrjax.errors import UserError


def _exit_code(main) -> int:
    with pytest.raises(SystemExit) as caught:
        run(main)
    return caught.value.code


def test_success_is_zero_and_an_int_is_the_code():
    assert _exit_code(lambda: None) == 0
    assert _exit_code(lambda: "text") == 0
    assert _exit_code(lambda: 3) == 3


def test_user_error_is_one_line_and_code_two(capsys):
    def main():
        raise UserError("records.jsonl:3: image_hw:\n  missing")

    assert _exit_code(main) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: records.jsonl:3: image_hw: missing\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\n\tb\x85c", "a b c"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("half \ud800", r"half \ud800"),
        ("Vị trí: phổi", "Vị trí: phổi"),
    ],
)
def test_foreign_text_in_a_message_does_not_steer_the_terminal(capsys, message, shown):
    def main():
        raise UserError(message)

    with pytest.raises(SystemExit):
        run(main)
    assert capsys.readouterr().err == f"error: {shown}\n"


def test_a_message_that_quotes_a_whole_file_keeps_both_its_ends(capsys):
    def main():
        raise UserError(f"a.json: found {'x' * 10**6}; expected a number")

    with pytest.raises(SystemExit):
        run(main)
    told = capsys.readouterr().err
    assert len(told) < 2_100 and told.startswith("error: a.json: found xx")
    assert told.endswith("xx; expected a number\n")


def test_a_bug_keeps_its_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_interrupt_is_130(capsys):
    def main():
        raise KeyboardInterrupt

    assert _exit_code(main) == 130
    assert capsys.readouterr().err == "interrupted\n"


HEAVY = (
    *("PIL", "absl", "clu", "etils", "flax", "grain", "jax", "ml_collections", "optax", "orbax"),
    *("pandas", "pyarrow", "pydantic", "pydicom", "scipy", "sentencepiece", "tensorflow"),
    *("tensorflow_datasets", "transformers"),
)


@pytest.mark.parametrize("command", ["train", "plan"])
def test_an_entry_point_imports_libraries_when_it_uses_them(command):
    code = f"import sys, cxrjax.{command}; print(*set({HEAVY}) & set(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
