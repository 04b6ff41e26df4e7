"""Findings mapped by a sentence-transformers model on disk, here one that counts words."""

import json
from pathlib import Path

import pytest

from cxrjax.commands import build
from cxrjax.errors import UserError
from cxrjax.papers.cxr_qba.construct.entity_mapping import embedding_mapper, map_by_wording
from cxrjax.radiology_text.definitions import load_definitions

pytestmark = pytest.mark.parity

SAMPLE = Path(__file__).parents[2] / "data" / "cxr_qba" / "sample" / "reports"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a model whose embedding is the sentence's bag of words."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    words = sorted({word for key in load_definitions().finding_names for word in key})
    folder = tmp_path_factory.mktemp("model") / "bag_of_words"
    sentence_transformers.SentenceTransformer(modules=[modules.BoW(words)]).save(str(folder))
    return folder


def test_the_nearest_wording_is_the_finding(model):
    mapper = embedding_mapper(model)
    for name in ("pleural effusion", "cardiomegaly", "pneumothorax"):
        assert mapper(name) == map_by_wording(name) == name
    # In another order, which no spelling resembles.
    assert map_by_wording("effusion pleural") is None
    assert mapper("effusion pleural") == "pleural effusion"
    assert mapper("banana") is None


def test_a_build_is_made_with_it_and_says_so(model, tmp_path):
    flags = ["--dataset=cxr_qba", f"--source={SAMPLE}", f"--out={tmp_path}"]
    build.main([*flags, f"--entity_model={model}"])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["entity_mapping"] == "bag_of_words"
    weights = json.loads((tmp_path / "statistics.json").read_text())
    assert weights["questions"]["value"] > 0


def test_a_folder_that_is_no_model(model, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a sentence-transformers model"):
        embedding_mapper(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        embedding_mapper(tmp_path / "none")
