"""Unknown keys, wrong types and contradictions are told in one line that helps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.training.config import ExperimentConfig, default_config, flatten
from cxrjax.training.config_file import load_config, other_names, typed_config, validate

_ROOT = Path(__file__).parents[2]
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


def _valid():
    config = default_config()
    config.training.batch_images = 4
    config.training.steps = 10
    return config


def test_defaults_are_valid_once_batch_and_length_are_given():
    validate(typed_config(_valid()))


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


@pytest.mark.parametrize(
    ("variant", "override", "said"),
    [
        ("", "--config.optimiser.learning_rate=1", "did you mean 'optimizer.learning_rate'"),
        ("", "--config.optimizer.warmup_step=1", "did you mean 'optimizer.warmup_steps'"),
        (":wrong_key", "", "did you mean 'optimizer.learning_rate'"),
        ("", "--config.optimizer.lr=1", "did you mean 'optimizer.learning_rate'"),
        ("", "--config.training.best_metric=coordinates/all/swapped_x", "lower is better"),
        ("", "--config.batch_size=1", "did you mean 'training.batch_images'"),
        (":wrong_type", "", "warmup_steps"),
        (":nonsense", "", "no variant 'nonsense'"),
        ("", "--config.optimizer.warmup_steps=2.5", "2.5"),
        ("", "--config.optimizer.schedule=linear", "cosine, constant"),
        ("", "--config.data.answer_buckets=('a',)", "a tuple of int"),
        ("", "--config.training.log_every=0", "above 0"),
        ("", "--config.optimizer.weight_decay=-1", "0 or more"),
        ("", "--config.training.epochs=2", "epochs=2.0: set one, and the other to None"),
        ("", "--config.training.batch_questions=2", "batch_questions=2: set one"),
        ("", "--config.training.accumulation_steps=3", "does not divide"),
        ("", "--config.training.profile_steps=(15,10)", "the first and the last step"),
        ("", "--config.training.profile_steps=(5,)", "the first and the last step"),
        ("", "--config.training.peak_flops=0", "above 0"),
        ("", "--learning_rate=1", "--config.key=value"),
        ("", f"--config.lora.targets={'(1,' * 300}", "too many brackets"),
    ],
)
def test_mistakes_are_one_line_errors(spec, variant, override, said):
    with pytest.raises(UserError) as caught:
        load_config(spec + variant, [override] if override else [])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file():
    with pytest.raises(UserError, match="no file nowhere"):
        load_config("nowhere.py:demo")


def test_random_initialisation_excludes_a_base():
    config = _valid()
    config.model.init = "random"
    config.model.init_from = "some/base"
    with pytest.raises(UserError, match="exclude each other"):
        validate(typed_config(config))


def test_a_base_brings_its_own_tower():
    config = _valid()
    config.model.init_from = "some/base"
    config.model.tower_from = "another"
    with pytest.raises(UserError, match="a base brings its own tower"):
        validate(typed_config(config))


def test_adapters_without_effect_are_refused():
    config = _valid()
    config.lora.rank = 8
    with pytest.raises(UserError, match=r"lora\.alpha=0.*would change nothing"):
        validate(typed_config(config))
    config.lora.alpha_pattern = ("q_proj=16",)
    validate(typed_config(config))
    config.lora.alpha, config.lora.alpha_pattern = 16.0, ()
    validate(typed_config(config))


def test_batch_in_questions_and_length_in_epochs():
    config = default_config()
    config.training.batch_questions = 32
    config.data.questions_per_image = 8
    config.training.epochs = 2.0
    validate(typed_config(config))
    assert typed_config(config).batch_images == 4
    assert typed_config(config).total_steps(images_per_epoch=100) == 50
    config.training.batch_questions = 33
    with pytest.raises(UserError, match="multiple"):
        validate(typed_config(config))


def test_json_round_trip_keeps_tuples_and_nulls():
    config = _valid()
    config.data.answer_buckets = (8, 16)
    config.model.init_from = "some/base"
    text = json.dumps(typed_config(config).to_json())
    again = typed_config(json.loads(text), "config.json")
    assert flatten(again.to_json()) == flatten(typed_config(config).to_json())
    assert again.data.answer_buckets == (8, 16)
    assert again.training.epochs is None


def test_json_from_when_remat_was_a_switch():
    for switch, name in ((True, "full"), (False, "none")):
        assert typed_config({"model": {"remat": switch}}, "x").model.remat == name


def test_kernels_do_not_take_packed_questions():
    config = default_config()
    config.training.batch_images, config.training.steps = 1, 1
    config.model.share, config.data.packed_buckets = "image", (64,)
    validate(typed_config(config))
    config.model.attention = "splash"
    with pytest.raises(UserError, match="packed_buckets"):
        validate(typed_config(config))


def test_json_of_another_version_is_refused():
    with pytest.raises(
        UserError, match=r"config\.json: unknown configuration key 'model\.presset'"
    ):
        typed_config({"model": {"presset": "tiny"}}, "config.json")
    with pytest.raises(UserError, match=r"config\.json: training\.seed"):
        typed_config({"training": {"seed": "zero"}}, "config.json")


def test_an_override_can_empty_a_key(spec):
    overrides = ["--config.training.steps=None", "--config.training.epochs=2.0"]
    config = load_config(spec, [*overrides, "--config.data.validation=None"])
    assert config.training.steps is None and config.training.epochs == 2.0
    assert config.data.validation is None
    with pytest.raises(UserError, match=r"lora\.rank"):
        load_config(spec, ["--config.lora.rank=None"])


def test_what_other_trainers_call_keys_leads_to_keys_that_exist():
    known = flatten(ExperimentConfig().to_json())
    assert set(other_names().values()) <= set(known)
    assert not set(other_names()) & {key.rpartition(".")[2] for key in known}


_READS = """
from cxrjax.training.config import ExperimentConfig

def read(config: ExperimentConfig) -> object:
    return config.{key}
"""


@pytest.mark.slow  # a type check of all that the configuration imports, where none is kept
def test_a_misspelt_attribute_fails_the_type_check(tmp_path):
    def complaints(key):
        file = tmp_path / "reads.py"
        file.write_text(_READS.format(key=key))
        command = [sys.executable, "-m", "mypy", str(file)]
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout

    assert complaints("optimizer.learning_rate").startswith("Success")
    said = complaints("optimizer.learning_rat")
    assert '"OptimizerConfig" has no attribute "learning_rat"; maybe "learning_rate"?' in said
    assert '"ExperimentConfig" has no attribute' in complaints("optimiser")


def test_defaults_of_files_and_of_dataclasses_are_the_same():
    assert typed_config(default_config()) == ExperimentConfig()
    assert default_config().to_dict() == ExperimentConfig().to_json()


def test_a_path_longer_than_any_file_s_is_none_that_ships(spec):
    name = "data/demo_base/" + "x" * 5_000
    assert load_config(spec, [f"--config.model.init_from={name}"]).model.init_from == name
    with pytest.raises(UserError, match="no file x"):
        load_config("x" * 5_000)
