"""Which options go together, and where they come from."""

import json

import pytest

from cxrjax.commands import evaluate, predict
from cxrjax.decoding.strategy import Strategy, read_decoding
from cxrjax.errors import UserError
from cxrjax.training.base_model import base_config
from cxrjax.training.config import default_config
from cxrjax.training.config_file import typed_config
from tests.decoding.conftest import BASE, TOKENIZER
from tests.papers.cases import cases


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beams": 0}, "decoding.beams=0: expected 1 or more"),
        ({"best_of": 0}, "decoding.best_of=0"),
        ({"temperature": -0.5}, "decoding.temperature=-0.5: expected 0 or more"),
        ({"top_p": 1.5}, "decoding.top_p=1.5: expected above 0 and at most 1"),
        ({"top_k": 5}, "set a temperature"),
        ({"seed": 2**32}, "expected less than"),
        ({"best_of": 4}, "set a temperature"),
        ({"beams": 4, "temperature": 1.0}, "beam search draws nothing"),
    ],
)
def test_options_are_checked(options, said):
    with pytest.raises(UserError, match=said):
        Strategy(8, (1,), **options)


def test_a_configuration_makes_strategy_and_grammar():
    config = default_config()
    strategy, grammar = read_decoding(typed_config(config).decoding, TOKENIZER, "paligemma")
    assert strategy == Strategy(64, TOKENIZER.stop_ids)
    assert grammar is not None and grammar.ends[0]
    config.decoding.update(
        {"grammar": "names", "names": ("ILD", "Nodule/Mass"), "stop_tokens": (".",), "beams": 3}
    )
    strategy, grammar = read_decoding(typed_config(config).decoding, TOKENIZER, "paligemma")
    assert strategy.stop_ids == (*TOKENIZER.stop_ids, TOKENIZER.piece_id("."))
    assert strategy.beams == strategy.candidates == 3
    assert grammar.shortest[0] == min(len(TOKENIZER.encode(n)) for n in ("ILD", "Nodule/Mass"))


@cases("options, said")
def test_what_tokenizer_and_codec_cannot_do(options, said):
    config = default_config()
    config.decoding.update(options)
    with pytest.raises(UserError, match=said):
        read_decoding(typed_config(config).decoding, TOKENIZER, "vindr_px")


def test_grammars_of_older_files_and_flags_of_commands(tmp_path):
    nested = typed_config(default_config()).to_json()
    for old, new in ((True, "boxes"), (False, "none")):
        nested["decoding"]["grammar"] = old
        assert typed_config(nested, "config.json").decoding.grammar == new
        described = json.loads((BASE / "model.json").read_text())
        (tmp_path / "model.json").write_text(json.dumps({**described, "grammar": old}))
        assert base_config(tmp_path).decoding.grammar == new
    shared = [f"--checkpoint={tmp_path}", f"--out={tmp_path}", "--beams=4", "--grammar=yes_no"]
    for command, own in (
        (predict, ["--questions=q"]),
        (evaluate, ["--benchmark=vindr_cxr_vqa", "--references=r"]),
    ):
        flags = command.parse_arguments([*shared, *own])
        assert flags.decoding() == {"beams": 4, "grammar": "yes_no"}
        with pytest.raises(SystemExit):
            command.parse_arguments([*shared, *own, "--grammar=poetry"])


def test_flags_take_the_place_of_keys():
    where = ["--workdir=w", "--benchmark=vindr_cxr_vqa"]
    assert evaluate.parse_arguments(where).decoding() == {}
    words = [*where, "--grammar=names", "--names=ILD,Nodule/Mass", "--temperature=0.7"]
    words += ["--top_k=5", "--top_p=0.9", "--best_of=4", "--seed=3", "--max_answer_tokens=9"]
    words += ["--beams=1", "--length_penalty=0"]
    given = evaluate.parse_arguments(words).decoding()
    config = default_config()
    config.decoding.update(given)
    strategy, _ = read_decoding(typed_config(config).decoding, TOKENIZER, "paligemma")
    assert config.decoding.names == ("ILD", "Nodule/Mass")
    assert (strategy.temperature, strategy.top_k, strategy.top_p) == (0.7, 5, 0.9)
    assert (strategy.best_of, strategy.seed, strategy.max_answer_tokens) == (4, 3, 9)
    assert strategy.length_penalty == 0
