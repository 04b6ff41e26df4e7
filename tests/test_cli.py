"""Entry points end in exit codes; users see one line, bugs keep their traceback."""

import subprocess
import sys

import pytest

from cxrjax.cli import run
from cxrjax.errors import UserError


def _ended(done) -> int:
    """The code that a command ends with which gives this back, or raises it."""

    def main():
        if isinstance(done, BaseException):
            raise done
        return done

    with pytest.raises(SystemExit) as caught:
        run(main)
    return caught.value.code


def test_success_is_zero_and_an_int_is_the_code():
    assert _ended(None) == _ended("text") == 0
    assert _ended(3) == 3


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("records.jsonl:3: image_hw:\n  missing", "records.jsonl:3: image_hw: missing"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\n\tb\x85c", "a b c"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("half \ud800", r"half \ud800"),
        ("Vị trí: phổi", "Vị trí: phổi"),
    ],
)
def test_a_user_error_is_one_line_that_does_not_steer_the_terminal(capsys, message, shown):
    assert _ended(UserError(message)) == 2
    assert capsys.readouterr() == ("", f"error: {shown}\n")


def test_a_message_that_quotes_a_whole_file_keeps_both_its_ends(capsys):
    assert _ended(UserError(f"a.json: found {'x' * 10**6}; expected a number")) == 2
    told = capsys.readouterr().err
    assert len(told) < 2_100 and told.startswith("error: a.json: found xx")
    assert told.endswith("xx; expected a number\n")


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        _ended(ZeroDivisionError())


def test_interrupt_is_130(capsys):
    assert _ended(KeyboardInterrupt()) == 130
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
