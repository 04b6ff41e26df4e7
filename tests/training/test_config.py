"""Keys, also of a mixture: written, overridden, read back, and refused in one line that helps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from cxrjax.errors import UserError
from cxrjax.records import write_records
from cxrjax.training.checkpoint import check_same_run
from cxrjax.training.config import ExperimentConfig, add_source, default_config, flatten
from cxrjax.training.config_file import load_config, typed_config, validate
from cxrjax.training.data import example_config, open_training
from cxrjax.training.key_names import other_names
from cxrjax.training.workdir import write_json
from tests.papers.cases import cases
from tests.training.conftest import settings
from tests.training.small_data import make_record

_ROOT = Path(__file__).parents[2]
_MIXTURE = f"{_ROOT / 'configs/mixture.py'}:tiny"
_FILE = '''
"""A test's experiment."""
from cxrjax.training.config import default_config

def get_config(variant=""):
    config = default_config()
    config.training.batch_images = 4
    config.training.steps = 10
    if variant == "wrong_key":
        config.optimizer.learning_rat = 0.1
    elif variant == "wrong_type":
        config.optimizer.warmup_steps = "many"
    elif variant == "fast":
        config.optimizer.learning_rate = 0.5
    elif variant:
        raise ValueError(f"no variant {variant!r}")
    return config
'''


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text(_FILE)
    return str(path)


def test_variant_and_overrides(spec):
    config = load_config(
        f"{spec}:fast",
        [
            "--config.optimizer.warmup_steps=7",
            "--config.model.init_from=some/base",
            "--config.trainable=('.*/kernel','decoder/(a|b)$')",
            "--config.data.answer_buckets=(8,16)",
            "--config.training.profile_steps=(10,15)",
            "--config.decoding.grammar=none",
        ],
    )
    assert config.optimizer.learning_rate == 0.5
    assert config.optimizer.warmup_steps == 7
    assert config.model.init_from == "some/base"
    assert config.trainable == (".*/kernel", "decoder/(a|b)$")
    assert config.data.answer_buckets == (8, 16)
    assert config.training.profile_steps == (10, 15)
    assert config.decoding.grammar == "none"


def _rows():
    lines = Path(__file__).with_name("wrong_keys.txt").read_text().splitlines()
    rows = [line.split(" => ") for line in lines if line and line[0] != "#"]
    # ast.literal_eval knows a limit of brackets.
    return [*rows, [f"FILE lora.targets={'(1,' * 300}", "too many brackets"]]


@pytest.mark.parametrize(("words", "said"), _rows())
def test_mistakes_are_one_line_errors(spec, words, said):
    file, *changes = words.replace("FILE", spec).replace("MIXTURE", _MIXTURE).split()
    with pytest.raises(UserError) as caught:
        load_config(file, [word if word[0] == "-" else f"--config.{word}" for word in changes])
    assert re.search(".*".join(map(re.escape, said.split(" ... "))), str(caught.value))
    assert "\n" not in str(caught.value)


@cases("changes")
def test_what_goes_together_is_taken(spec, changes):
    validate(load_config(spec, [f"--config.{change}" for change in changes]))


def test_json_round_trip_keeps_tuples_and_numbers_of_batches():
    config = settings()
    config.data.answer_buckets = (8, 16)
    config.model.init_from = "some/base"
    text = json.dumps(typed_config(config).to_json())
    again = typed_config(json.loads(text), "config.json")
    assert flatten(again.to_json()) == flatten(typed_config(config).to_json())
    assert again.data.answer_buckets == (8, 16)
    assert again.training.epochs is None
    config = default_config()
    config.training.batch_questions = 32
    config.data.questions_per_image = 8
    config.training.epochs = 2.0
    validate(typed_config(config))
    assert typed_config(config).batch_images == 4
    assert typed_config(config).total_steps(images_per_epoch=100) == 50


def test_json_comes_back_as_it_was_from_any_version():
    for switch, name in ((True, "full"), (False, "none")):
        assert typed_config({"model": {"remat": switch}}, "x").model.remat == name
    with pytest.raises(
        UserError, match=r"config\.json: unknown configuration key 'model\.presset'"
    ):
        typed_config({"model": {"presset": "tiny"}}, "config.json")
    with pytest.raises(UserError, match=r"config\.json: training\.seed"):
        typed_config({"training": {"seed": "zero"}}, "config.json")
    assert typed_config(default_config()) == ExperimentConfig()
    assert default_config().to_dict() == ExperimentConfig().to_json()
    config = load_config(f"{_CONFIG}:tiny")
    again = typed_config(config.to_json(), "config.json")
    validate(again)
    assert again.to_json() == config.to_json()
    assert not typed_config(typed_config(default_config()).to_json(), "x").mixture.sources


def test_names_of_other_trainers_and_long_paths_lead_somewhere(spec):
    known = flatten(ExperimentConfig().to_json())
    assert set(other_names().values()) <= set(known)
    assert not set(other_names()) & {key.rpartition(".")[2] for key in known}
    name = "data/demo_base/" + "x" * 5_000
    assert load_config(spec, [f"--config.model.init_from={name}"]).model.init_from == name
    with pytest.raises(UserError, match="no file x"):
        load_config("x" * 5_000)


_READS = """
from cxrjax.training.config import ExperimentConfig

def read(config: ExperimentConfig) -> object:
    return config.{key}
"""


@pytest.mark.slow  # a type check of all that the configuration imports, where none is kept
def test_a_misspelt_attribute_fails_the_type_check(tmp_path):
    keys = ("optimizer.learning_rate", "optimizer.learning_rat", "optimiser")
    files = [tmp_path / f"reads_{number}.py" for number in range(len(keys))]
    for file, key in zip(files, keys, strict=True):
        file.write_text(_READS.format(key=key))
    command = [sys.executable, "-m", "mypy", *map(str, files)]
    said = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout.splitlines()
    right, second, third = ([line for line in said if file.name in line] for file in files)
    assert right == []
    maybe = '"OptimizerConfig" has no attribute "learning_rat"; maybe "learning_rate"?'
    assert len(second) == 1 and maybe in second[0]
    assert len(third) == 1 and '"ExperimentConfig" has no attribute' in third[0]


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


def test_pairs_need_a_preference_and_sources_their_files(tmp_path):
    config = _mixed()
    config.rl.pairs = "pairs.jsonl"
    with pytest.raises(UserError, match=r"rl\.pairs=pairs\.jsonl is of preferences"):
        validate(typed_config(config))
    config.rl.kind = "dpo"
    validate(typed_config(config))
    with pytest.raises(UserError, match=r"mixture\.sources\.a\.train names a\.jsonl"):
        open_training(typed_config(_mixed()))


def test_a_source_without_a_pair_is_left_out(tmp_path, capsys):
    """And a run knows its pairs: with others it would be another."""
    for name in "ab":
        record = make_record(name, name, "Yes.", (10, 20), image_path=f"{name}.png")
        write_records(tmp_path / f"{name}.jsonl", [record])
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


def test_command_lines_change_single_keys_and_empty_them(spec):
    words = [
        "--config.mixture.sources.vindr.weight=2.5",
        "--config.mixture.sources.gemex.train=x.jsonl",
    ]
    config = load_config(f"{_CONFIG}:tiny", words)
    assert config.mixture.sources["vindr"].weight == 2.5
    assert config.of_source("gemex").data.train == "x.jsonl"
    words = [f"--config.mixture.sources.vindr.{word}" for word in ("prompt=detect", "codec=None")]
    vindr = load_config(f"{_CONFIG}:tiny", words).mixture.sources["vindr"]
    assert (vindr.prompt, vindr.codec) == ("detect", None)
    words = [*words, "--config.mixture.sources.vindr.prompt=None"]
    assert load_config(f"{_CONFIG}:tiny", words).mixture.sources["vindr"].prompt is None
    overrides = ["--config.training.steps=None", "--config.training.epochs=2.0"]
    config = load_config(spec, [*overrides, "--config.data.validation=None"])
    assert config.training.steps is None and config.training.epochs == 2.0
    assert config.data.validation is None


def test_a_temperature_goes_with_sizes_and_the_default_with_weights():
    config = _mixed(weight=1.0)
    config.mixture.sources.a.weight = 3.0
    validate(typed_config(config))
    config.mixture.temperature = 0.5
    with pytest.raises(UserError, match=r"mixture\.temperature=0\.5 would change nothing"):
        validate(typed_config(config))
    config.mixture.sources.a.weight = config.mixture.sources.b.weight = None
    validate(typed_config(config))


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
