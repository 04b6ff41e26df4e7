"""The base of real radiographs that ships, asked about patients it was not trained on.

It knows its own way of writing boxes best: who trains it begins with that.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from cxrjax.boxes import iou
from cxrjax.commands import build, predict
from cxrjax.input_pipeline.loader import eval_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.papers.lungs.native import read_folder
from cxrjax.records import read_records
from cxrjax.records_io.quality import QualityLog
from cxrjax.training.checkpoint import load_model
from cxrjax.training.data import example_config, open_tokenizer
from cxrjax.training.loss import multitask_loss

ROOT = Path(__file__).parents[1]
BASE, RADIOGRAPHS = ROOT / "data/real_base", ROOT / "data/radiographs"
IMAGES = 24
_LUNGS = ("right lung", "left lung")


def test_it_and_the_radiographs_are_small_and_split_by_patient():
    for folder, most in ((BASE, 12e6), (RADIOGRAPHS / "images", 10e6)):
        assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) <= most
    splits: dict[str, set[str]] = {}
    for image in read_folder(RADIOGRAPHS, QualityLog()):
        splits.setdefault(image.patient, set()).add(image.split)
    assert all(len(of) == 1 for of in splits.values())
    assert set().union(*splits.values()) == {"train", "validation"}


@pytest.fixture(scope="module")
def lungs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lungs")
    build.main(["--dataset=lungs", f"--source={RADIOGRAPHS}", f"--out={folder}"])
    return folder


@pytest.fixture(scope="module")
def asked(lungs, tmp_path_factory):
    """`asked(ask)`: held-out radiographs' records and answers, the question made of the finding."""
    folder = tmp_path_factory.mktemp("real_base")
    built = read_records(lungs / "records/validation.jsonl")
    records = [record for record in built if record.finding in _LUNGS]
    chosen = sorted({record.image_id for record in records})
    chosen = chosen[:: len(chosen) // IMAGES]
    every = [record for record in records if record.image_id in chosen]

    def ask(wording: str) -> list:
        questions, out = folder / "questions.jsonl", folder / "answers.jsonl"
        lines = []
        for record in every:
            line = json.loads(record.model_dump_json(exclude={"answers"}, exclude_none=True))
            line |= {"question": wording.format(record.finding)}
            lines.append(json.dumps(line) + "\n")
        questions.write_text("".join(lines))
        files = (f"--questions={questions}", f"--out={out}", f"--image_root={lungs}")
        predict.main([f"--checkpoint={BASE}", *files])
        return [json.loads(line) for line in out.read_text().splitlines()]

    return every, ask


@pytest.mark.slow
def test_it_finds_the_lungs_of_held_out_patients(asked):
    records, ask = asked
    for wording, least in (("Where is the {}?", 0.88), ("where is the {}", 0.88)):
        answers = ask(wording)
        assert all(answer["parse"] == "ok" for answer in answers)
        boxes = np.array([answer["boxes"][0] for answer in answers])
        size = np.array([[r.image_hw[1], r.image_hw[0]] * 2 for r in records])
        true = np.array([r.boxes[0] for r in records]) / size
        assert np.mean(iou(boxes, true)) > least, wording
        # Never the same box for both lungs, nor the other one's.
        of = {(r.image_id, r.finding): box for r, box in zip(records, boxes, strict=True)}
        for image_id in {r.image_id for r in records}:
            right, left = of[image_id, "right lung"], of[image_id, "left lung"]
            assert right[0] < left[0] and iou(right, left) < 0.2


@pytest.mark.slow
def test_what_it_was_not_taught_is_unknown(asked):
    _, ask = asked
    answers = ask("Where is the stethoscope?")
    assert np.mean([answer["text"] == "Unknown." for answer in answers]) > 0.8


@pytest.fixture(scope="module")
def base(lungs):
    """`batch(key=value, ...)` of radiographs by these settings, and `cost(batch)` of an answer.

    Records, loader and loss are those of training. A cost is the nats of a whole answer in the
    mean: conventions differ in how many tokens they take.
    """
    loaded = load_model(BASE)
    tokenizer = open_tokenizer(loaded.tokenizer_path, loaded.config)
    graphdef, state = nnx.split(loaded.model)

    def batch(**changes):
        data = dataclasses.replace(
            loaded.config.data, answer_buckets=(128,), prefix_buckets=(24,), **changes
        )
        training = dataclasses.replace(loaded.config.training, box_route="none")
        config = dataclasses.replace(loaded.config, data=data, training=training)
        records = RecordSource(lungs / "records/validation.jsonl", None, 4)
        others = {i for i, record in records.records() if record.finding not in _LUNGS}
        how = {"global_batch_size": 8, "with_answers": True}
        loader = eval_loader(records.without(others), tokenizer, example_config(config), **how)
        return next(iter(loader)).batch

    @jax.jit
    def parts(state, batch):
        return multitask_loss(nnx.merge(graphdef, state), batch, {})[1]

    def cost(batch) -> float:
        return float(parts(state, batch)["ce"][0]) / float(batch.answer_mask.any(axis=-1).sum())

    return batch, cost


@pytest.mark.slow
def test_its_own_convention_costs_least(base):
    batch, cost = base
    stretched, padded = batch(), batch(geometry="letterbox")
    own = cost(stretched)
    wrong = {
        # The numbers are of another placing of the image than the one that the model sees.
        "stretched, told as padded": dataclasses.replace(padded, images=stretched.images),
        "padded, told as stretched": dataclasses.replace(stretched, images=padded.images),
        "pixels of the original": batch(codec="vindr_px"),
        "thousandths of the image": batch(codec="gemini_json"),
        "hundredths of the padded square": batch(codec="llava"),
    }
    costs = {name: cost(each) for name, each in wrong.items()}
    assert all(each > own + 1 for each in costs.values()), (own, costs)
    # Where picture and numbers are padded alike, the convention is the same.
    assert cost(padded) < min(costs.values()), (own, costs)
