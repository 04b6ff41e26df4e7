"""A mixture's keys: written, overridden, read back, refused."""

import json
from pathlib import Path

import pytest
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.records import Answer, QARecord, write_records
from cxrjax.training.checkpoint import check_same_run
from cxrjax.training.config import add_source, default_config
from cxrjax.training.config_file import load_config, typed_config, validate
from cxrjax.training.data import example_config, open_training
from cxrjax.training.workdir import write_json

_CONFIG = str(Path(__file__).parents[2] / "configs" / "mixture.py")


def _mixed(**keys):
    config = default_config()
    config.training.batch_images = 4
    config.training.steps = 10
    add_source(config, "a", "a.jsonl", prompt="detect", questions_per_image=3)
    add_source(config, "b", "b.jsonl", **keys)
    return config


def test_a_source_says_what_it_has_of_its_own_and_takes_the_rest_from_data():
    config = _mixed(record_codec="gemex")
    validate(typed_config(config))
    config.data.answer_buckets = (99,)
    a, b = (example_config(typed_config(config).of_source(name)) for name in "ab")
    assert (a.prompt, a.record_codec) == ("detect", "vindr_px")
    assert (b.prompt, b.record_codec) == ("vqa", "gemex")
    assert a.answer_buckets == b.answer_buckets == (99,)
    assert typed_config(config).of_source("a").data.questions_per_image == 3
    assert config.data.prompt == "vqa" and config.data.train is None
    assert typed_config(config).train_files == ["a.jsonl", "b.jsonl"]


def test_it_is_read_back_from_json_as_it_was():
    config = load_config(f"{_CONFIG}:tiny")
    again = typed_config(config.to_json(), "config.json")
    validate(again)
    assert again.to_json() == config.to_json()
    assert not typed_config(typed_config(default_config()).to_json(), "x").mixture.sources


def test_pairs_need_a_preference():
    config = _mixed()
    config.rl.pairs = "pairs.jsonl"
    with pytest.raises(UserError, match=r"rl\.pairs=pairs\.jsonl is of preferences"):
        validate(typed_config(config))
    config.rl.kind = "dpo"
    validate(typed_config(config))


def _record(name):
    return QARecord(
        dataset="custom",
        split="train",
        image_id=name,
        image_path=f"{name}.png",
        image_hw=(10, 20),
        question_id=name,
        question="Is there a nodule?",
        question_type="Is_there",
        answers=[Answer(text="Yes.")],
    )


def test_a_source_without_a_pair_is_left_out(tmp_path, capsys):
    """And a run knows its pairs: with others it would be another."""
    for name in "ab":
        write_records(tmp_path / f"{name}.jsonl", [_record(name)])
        Image.new("L", (20, 10)).save(tmp_path / f"{name}.png")
    config = default_config()
    for name in "ab":
        add_source(config, name, str(tmp_path / f"{name}.jsonl"))
    pairs = tmp_path / "pairs.jsonl"
    config.rl.kind, config.rl.pairs = "dpo", str(pairs)
    found = []
    for better in ("Yes.", "Surely."):
        line = {"question_id": "b", "better": better, "worse": "No."}
        pairs.write_text(json.dumps(line) + "\n")
        sources, _ = open_training(typed_config(config))
        assert list(sources) == ["b"]
        found.append(sources["b"].fingerprint)
    assert found[0] != found[1]
    assert "mixture.sources.a is left out" in capsys.readouterr().err
    pairs.write_text(json.dumps(line | {"question_id": "c"}) + "\n")
    with pytest.raises(UserError, match="no source's question has a pair"):
        open_training(typed_config(config))


def test_command_lines_change_single_keys():
    words = [
        "--config.mixture.sources.vindr.weight=2.5",
        "--config.mixture.sources.gemex.train=x.jsonl",
    ]
    config = load_config(f"{_CONFIG}:tiny", words)
    assert config.mixture.sources["vindr"].weight == 2.5
    assert config.of_source("gemex").data.train == "x.jsonl"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mixture.sources.vindr.wieght=2", "did you mean 'mixture.sources.vindr.weight'"),
        ("mixture.sources.nobody.weight=2", "'nobody' is no source of the file's mixture"),
        ("mixture.sources.nobody.weight=None", "'nobody' is no source of the file's mixture"),
        ("mixture.temprature=2", "did you mean 'mixture.temperature'"),
        ("mixture.temperature=0", "mixture.temperature=0.0: expected a number above 0"),
        (
            "mixture.temperature=2",
            "mixture.temperature=2.0 .* leave it at 1.0, or leave the weights",
        ),
        ("mixture.sources.vindr.weight=-1", "weight of vindr is -1.0"),
        ("mixture.sources.vindr.codec=vindr_px", "vindr .vindr_px. by digits"),
        ("data.train=x.jsonl", "data.train='x.jsonl' and mixture.sources exclude each other"),
        ("mixture.sources.vindr.questions_per_image=0", "expected a number above 0"),
        ("mixture.sources.vindr.train=", "mixture.sources.vindr.train is not set"),
    ],
)
def test_wrong_keys_end_in_one_line(word, message):
    with pytest.raises(UserError, match=message) as error:
        load_config(f"{_CONFIG}:tiny", [f"--config.{word}"])
    assert "\n" not in str(error.value)


def test_a_temperature_goes_with_sizes_and_the_default_with_weights():
    config = _mixed(weight=1.0)
    config.mixture.sources.a.weight = 3.0
    validate(typed_config(config))
    config.mixture.temperature = 0.5
    with pytest.raises(UserError, match=r"mixture\.temperature=0\.5 would change nothing"):
        validate(typed_config(config))
    config.mixture.sources.a.weight = config.mixture.sources.b.weight = None
    validate(typed_config(config))


def test_what_a_source_says_can_be_emptied():
    words = [f"--config.mixture.sources.vindr.{word}" for word in ("prompt=detect", "codec=None")]
    vindr = load_config(f"{_CONFIG}:tiny", words).mixture.sources["vindr"]
    assert (vindr.prompt, vindr.codec) == ("detect", None)
    words = [*words, "--config.mixture.sources.vindr.prompt=None"]
    assert load_config(f"{_CONFIG}:tiny", words).mixture.sources["vindr"].prompt is None


def test_contradictions_are_refused():
    with pytest.raises(UserError, match="no weight for a"):
        validate(typed_config(_mixed(weight=1.0)))
    config = _mixed(codec="paligemma")
    config.mixture.sources.a.codec, config.data.codec = "paligemma", "vindr_px"
    with pytest.raises(UserError, match=r"data \(vindr_px\) by digits, a \(paligemma\) by loc"):
        validate(typed_config(config))
    config = _mixed()
    config.training.batch_images, config.training.batch_questions = None, 4
    with pytest.raises(UserError, match="batch_images"):
        validate(typed_config(config))
    with pytest.raises(UserError, match=r"'c' is no source of the run's mixture: .* a, b"):
        typed_config(_mixed()).of_source("c")
    with pytest.raises(UserError, match=r"mixture\.sources\.d"):
        typed_config({"mixture": {"sources": {"d": 3}}}, "config.json")


def test_a_missing_file_is_told_by_its_own_key(tmp_path):
    with pytest.raises(UserError, match=r"mixture\.sources\.a\.train names a\.jsonl"):
        open_training(typed_config(_mixed()))


def test_a_run_is_resumed_with_moved_files_and_with_no_other_shares(tmp_path):
    write_json(tmp_path / "config.json", typed_config(_mixed()).to_json())
    moved = _mixed()
    moved.mixture.sources.a.train = "elsewhere/a.jsonl"
    check_same_run(tmp_path, typed_config(moved))
    moved.mixture.temperature = 2.0
    with pytest.raises(UserError, match=r"mixture\.temperature is 1\.0 there and 2\.0 now"):
        check_same_run(tmp_path, typed_config(moved))
    more = _mixed()
    add_source(more, "c", "c.jsonl")
    with pytest.raises(UserError, match=r"mixture\.sources\.c\.train is 'absent' there"):
        check_same_run(tmp_path, typed_config(more))


@pytest.mark.parametrize("sources", [[], [1], 3, "a", {"": {}}, {"a": []}, {"a": 3}])
def test_sources_of_another_form_in_a_run_s_configuration_are_refused(sources):
    with pytest.raises(UserError, match=r"config.json: mixture\.sources.*expected"):
        typed_config({"mixture": {"sources": sources}}, "config.json")
