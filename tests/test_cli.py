"""Entry points end in exit codes: one line for users, also where an optional library is missing."""

import sys

import pytest

from cxrjax.apps.demo.page import import_gradio
from cxrjax.cli import run
from cxrjax.errors import UserError, optional
from cxrjax.evaluation.systems.hf_model import FolderModel
from cxrjax.models.gguf import GGUFFile
from cxrjax.papers.cxr_qba.construct.pipeline import beam_flags


def _ended(done) -> int:
    """The code that a command ends with which gives this back, or raises it."""

    def main():
        if isinstance(done, BaseException):
            raise done
        return done

    with pytest.raises(SystemExit) as caught:
        run(main)
    return caught.value.code


def test_codes_and_long_messages_that_keep_both_ends(capsys):
    assert _ended(None) == _ended("text") == 0
    assert _ended(3) == 3
    with pytest.raises(ZeroDivisionError):
        _ended(ZeroDivisionError())
    assert _ended(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert _ended(UserError(f"a.json: found {'x' * 10**6}; expected a number")) == 2
    told = capsys.readouterr().err
    assert len(told) < 2_100 and told.startswith("error: a.json: found xx")
    assert told.endswith("xx; expected a number\n")
    assert optional("json.decoder", "none").JSONDecoder


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


@pytest.fixture
def missing(monkeypatch):
    """`missing("gguf")`: importing it fails as where it is not installed."""

    def block(library):
        for name in [name for name in sys.modules if name.split(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)

    return block


@pytest.mark.parametrize(
    ("library", "use", "remedy"),
    [
        ("gguf", lambda folder: GGUFFile(folder / "a.gguf"), "pip install 'cxrjax[gguf]'"),
        ("torch", FolderModel, "pip install 'cxrjax[hf]'"),
        ("gradio", import_gradio, "`make try` installs it"),
        ("apache_beam", lambda _: beam_flags([], [], 1), "`make beam` makes an environment"),
    ],
)
def test_a_missing_library_is_one_line_with_its_remedy(missing, tmp_path, library, use, remedy):
    missing(library)
    with pytest.raises(UserError) as told:
        use(tmp_path)
    message = str(told.value)
    assert message.startswith(library) and "cannot be imported (" in message
    assert remedy in message and "\n" not in message
