"""Every experiment in configs/ can be read, and the demo's names what the paper has."""

from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.models import PRESETS
from cxrjax.training.config import load_config

_CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize("config", sorted(_CONFIGS.glob("*.py")), ids=lambda path: path.stem)
def test_every_config_is_whole_and_says_how_to_run_it(config):
    assert load_config(str(config)).model.preset in PRESETS
    assert f"--config=configs/{config.name}" in config.read_text()
    with pytest.raises(UserError, match="no_such_variant"):
        load_config(f"{config}:no_such_variant")


def test_the_papers_values():
    """arXiv 2511.00504v2, section 3.1."""
    config = load_config(str(_CONFIGS / "vindr_lora.py"))
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (16, 32.0, 0.1)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (2e-5, 0.01)
    assert config.training.batch_questions == 16
    assert config.training.accumulation_steps == 4
    assert (config.training.epochs, config.training.lambda_box) == (3.0, 0.5)
    assert config.training.best_metric == "vqa/f1"


@pytest.mark.parametrize(
    "spec",
    [
        "vindr_lora.py:demo",
        "vindr_lora.py:paligemma",
        "vindr_lora.py:paper_mix",
        "demo_base.py:decoder",
        "gemex_sft.py:tiny",
        "cxr_qba.py:tiny",
        "mixture.py:tiny",
    ],
)
def test_every_variant_is_whole(spec):
    config = load_config(str(_CONFIGS / spec))
    assert config.model.preset in PRESETS
    assert config.model.init_from or config.model.tower_from


def test_gemex_recipe():
    """arXiv 2411.16778, section 4.1, and its script."""
    config = load_config(str(_CONFIGS / "gemex_sft.py"))
    assert config.trainable == ("^projector", "^decoder/")
    assert (config.optimizer.warmup_from, config.optimizer.learning_rate) == (3e-7, 2e-5)
    assert (config.optimizer.schedule, config.optimizer.weight_decay) == ("cosine", 0.0)
    assert (config.training.batch_questions, config.training.epochs) == (64, 3.0)
    steps = 3 * 1_588_975 / 64
    assert config.optimizer.warmup_steps == round(0.03 * steps)
    assert (config.model.dtype, config.model.remat, config.mesh.fsdp) == ("bfloat16", "full", 4)
