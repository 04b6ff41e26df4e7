"""The card of a run: what it says, that Hugging Face reads it, and that an edited one stays."""

import html
import json
import re
from pathlib import Path

import pytest

from cxrjax.apps import run_card
from cxrjax.apps.run_card import Data, write_card
from cxrjax.training.config_file import load_config
from tests.apps.axe import accessibility_faults
from tests.apps.rows import ROWS

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "configs" / "vindr_lora.py")
DATA = [
    Data("training", "own/records/train.jsonl", 1200, 5400),
    Data("validation", "own/records/validation.jsonl", 60, 270),
]
OVERVIEW = "| projector/lora/a | (128, 16) |\nTotal: 2,048 -- 8,192 bytes"
LINES = ROWS["log_of_a_run"]
LINES[-1]["detection/f1@0.3"] = None


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(ROWS["run_of_a_card"]))
    (folder / "quality.json").write_text('{"total": 3}')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return folder


def _write(workdir, *overrides, recipe=RECIPE, datasets=("vindr_cxr_vqa",), data=DATA):
    words = [f"--config.{one}" for one in overrides]
    config = load_config(RECIPE, [*words, "--config.training.best_metric=vqa/f1"])
    more = {"recipe": recipe, "data": data, "datasets": datasets, "languages": ["en"]}
    return write_card(workdir, config, **more, parameters=OVERVIEW)


def test_both_cards_say_what_was_done(workdir):
    written = _write(workdir, "training.steps=3", "training.epochs=None")
    assert [path.name for path in written] == ["README.md", "card.html"]
    card = (workdir / "README.md").read_text()
    page = html.unescape((workdir / "card.html").read_text())
    for text in ROWS["said_on_the_card"]:
        assert text in card and text in page, text
    assert f"```\n{OVERVIEW}\n```" in card and f">{OVERVIEW}</pre>" in page
    assert "`python -m cxrjax.predict" in card and "`" not in page.partition("</style>")[2]
    settings = card.partition("## Settings")[2].partition("## Figures")[0]
    keys = re.findall(r"^\| ([\w.]+) \|", settings, re.M)
    assert keys == ["key", "training.best_metric", "training.epochs", "training.steps"]
    figures = card.partition("## Figures")[2].partition("##")[0]
    assert "| vqa/f1 | 0.5 |" in figures and "detection" not in figures
    assert "seconds_left" not in figures and "spread" not in card


def test_hugging_face_reads_it_with_the_terms_of_the_base(workdir):
    hub = pytest.importorskip("huggingface_hub")
    _write(workdir)
    data = hub.ModelCard.load(workdir / "README.md").data
    assert data.library_name == "cxrjax" and data.pipeline_tag == "image-text-to-text"
    assert data.license == "other" and data.language == ["en"] and "chest-x-ray" in data.tags
    (result,) = data.eval_results
    assert (result.metric_name, result.metric_value) == ("vqa/f1", 0.5)
    assert (result.dataset_name, result.dataset_split) == ("validation", "validation")
    presets = ("gemma4_12b", "gemma3_1b", "medgemma_4b", "qwen25_vl_3b", "tiny_gemma4")
    apache, gemma, health, qwen, none = map(run_card._licence, presets)
    assert (apache, gemma) == ("the Apache licence 2.0", "the Gemma terms of use")
    assert "Health AI" in health and "Qwen research" in qwen and none is None


def test_a_run_without_evaluation_says_so_and_an_edited_card_stays(workdir):
    (workdir / "metrics.jsonl").write_text(json.dumps(LINES[0]) + "\n")
    _write(workdir, recipe=None, datasets=["custom"], data=DATA[:1])
    card = (workdir / "README.md").read_text()
    assert "nothing says how good the model is" in card and "model-index" not in card
    assert "differs from the defaults" in card and "Training loss: 4." in card
    _write(workdir)
    (workdir / "README.md").write_text("---\nlicense: mit\n---\nMine.\n")
    assert [path.name for path in _write(workdir)] == ["card.html"]
    assert (workdir / "README.md").read_text().endswith("Mine.\n")


@pytest.mark.slow
def test_the_page_is_accessible(workdir, browser):
    _write(workdir)
    assert accessibility_faults(browser, (workdir / "card.html").as_uri()) == []
