"""Libraries that one feature alone needs, where they are missing."""

import sys

import pytest

from cxrjax.apps.demo.page import import_gradio
from cxrjax.errors import UserError, optional
from cxrjax.evaluation.systems.hf_model import FolderModel
from cxrjax.models.gguf import GGUFFile
from cxrjax.papers.cxr_qba.construct.pipeline import beam_flags


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


def test_what_is_installed_is_imported():
    assert optional("json.decoder", "none").JSONDecoder
