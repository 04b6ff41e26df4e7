"""The evaluation during training picks its benchmark; only the generating is played here."""

import contextlib
import types
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from cxrjax.api import training_run
from cxrjax.errors import UserError
from cxrjax.evaluation import validation
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.paper import load_benchmark
from cxrjax.records import Answer, write_records
from cxrjax.training.config import default_config
from cxrjax.training.config_file import load_config, typed_config
from tests.evaluation import made
from tests.papers.cases import cases


def make(dataset, number, **fields):
    return made.record_of(
        f"i{number}", boxes=[[10, 10, 60, 40]], dataset=dataset, image_hw=(50, 100), **fields
    )


SEEN = {"text": "<answer> Yes. <reason> Seen. <location>[]", "labels": []}
RECORDS = {
    "vindr_cxr_vqa": [make("vindr_cxr_vqa", n) for n in range(3)],
    "gemex": [make("gemex", n, kind="closed_ended", answer=SEEN, variables=None) for n in range(3)],
}


bars: list[tuple[str, int]] = []


def noted_bar(iterable, desc, total, **settings):
    bars.append((desc, total))
    return iterable


@pytest.fixture(params=list(RECORDS))
def evaluated(request, tmp_path, monkeypatch):
    """(benchmark, its figures) of a model that repeats the references but for one box."""
    records = RECORDS[request.param]
    for record in records:
        Image.fromarray(np.zeros((50, 100), np.uint8)).save(tmp_path / record.image_path)
    write_records(tmp_path / "validation.jsonl", records)
    source = RecordSource(tmp_path / "validation.jsonl")
    monkeypatch.setattr(validation, "Generator", lambda *arguments: None)

    def repeat(*arguments, **options):
        for number, record in enumerate(records):
            boxes = [[0.1, 0.2, 0.6, 0.8]] if number else []
            yield made.line_of(record, record.answer_text, boxes)

    monkeypatch.setattr(validation, "predict_questions", repeat)
    bars.clear()
    monkeypatch.setattr(validation, "progress_bar", noted_bar)
    benchmark = load_benchmark(request.param)
    evaluate = validation.make_evaluate(
        source,
        None,
        None,
        benchmark=benchmark,
        references=benchmark.read(records, "validation.jsonl", benchmark.gt_modes[0]),
        strategy=None,
        grammar=None,
        images_per_batch=1,
    )
    return request.param, evaluate(1, None)


def test_figures_logged_are_the_benchmarks_own_or_all_strict_ones(evaluated):
    name, figures = evaluated
    assert bars == [("validation", 3)], "answering may take minutes, which is said"
    logged = {one for metrics in load_benchmark(name).layout.logged.values() for one in metrics}
    assert set(figures) == logged | {"overlays"}
    assert figures["overlays"].shape[0] == 3
    if name == "gemex":
        assert figures["a_score"] == 1 and figures["v_score"] == pytest.approx(2 / 3)
        assert figures["by_question_type/a_score/multi_choice"] is None
    else:
        assert figures["vqa/f1"] == 1
        assert figures["detection/recall@0.3"] == pytest.approx(2 / 3)
    figures = {"paper": {"a": types.SimpleNamespace(value=1)}}
    figures["strict"] = {n: types.SimpleNamespace(value=v) for n, v in (("a", 2), ("b", None))}
    vix_ray = load_benchmark("vix_ray")
    found = replace(vix_ray.layout, logged={}).logged_figures(figures)
    assert found == [("strict", "a", 2), ("strict", "b", None)]


def test_an_image_that_cannot_be_read_is_not_drawn(tmp_path):
    records = RECORDS["gemex"]
    for record in records:
        Image.fromarray(np.zeros((50, 100), np.uint8)).save(tmp_path / record.image_path)
    (tmp_path / "i1.png").write_bytes((tmp_path / "i1.png").read_bytes()[:60])
    write_records(tmp_path / "validation.jsonl", records)
    source = RecordSource(tmp_path / "validation.jsonl")
    assert validation.draw_predictions(source, [], 2).shape[0] == 2  # the other two


def test_own_records_are_scored_by_their_own_classes(tmp_path):
    """Those of VinDr-CXR would be among them else, which nobody has marked here."""
    config = load_config("configs/records_lora.py", [])
    boxed = {"i0": [[10, 10, 60, 40]]}
    answer = Answer(text="Ja.", polarity="pos", labels=["Erguss"], boxes_by_image=boxed)
    record = make("custom", 0, answers=[answer], variables=None)
    write_records(tmp_path / "own.jsonl", [record])
    references = training_run.read_validation(config, RecordSource(tmp_path / "own.jsonl"))
    assert config.benchmark == "own" and references.classes == ("Erguss",)


@cases("key, value, said")
def test_a_benchmark_and_a_best_figure_that_cannot_be_are_refused(key, value, said):
    config = default_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        training_run.check_benchmark(typed_config(config))
