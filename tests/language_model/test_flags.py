"""Flags and environment -> client."""

import argparse
import re

import pytest

from cxrjax.errors import UserError
from cxrjax.flags import add_options, options_of
from cxrjax.language_model.flags import ClientFlags, client_from_flags
from cxrjax.language_model.settings import Prices
from tests.language_model.conftest import CASES

LOCAL = "--base_url=http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("BASE_URL", "MODEL", "API_KEY", "PRICE_IN", "PRICE_OUT"):
        monkeypatch.delenv(f"CXRJAX_LM_{name}", raising=False)


def _client(tmp_path, *arguments):
    parser = argparse.ArgumentParser()
    add_options(parser, ClientFlags)
    flags = options_of(parser.parse_args(arguments), ClientFlags)
    return client_from_flags(flags, tmp_path / "answers.jsonl", ())


def test_environment_and_flags_that_override_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CXRJAX_LM_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("CXRJAX_LM_MODEL", "theirs")
    monkeypatch.setenv("CXRJAX_LM_API_KEY", "secret")
    monkeypatch.setenv("CXRJAX_LM_PRICE_IN", "1.25")
    monkeypatch.setenv("CXRJAX_LM_PRICE_OUT", "10")
    settings = _client(tmp_path).settings
    assert (settings.base_url, settings.model) == ("http://127.0.0.1:1/v1", "theirs")
    assert settings.api_key == "secret" and settings.prices == Prices(1.25, 10.0)
    assert not settings.allow_sending and settings.max_cost is None
    assert (tmp_path / "answers.jsonl").exists()
    flags = ("--model=ours", LOCAL, "--price_in=0", "--max_cost=3", "--requests_per_minute=9")
    other = (*flags, "--concurrency=2", "--text_only", f"--cache={tmp_path / 'mine.jsonl'}")
    settings = _client(tmp_path, *other, "--allow_sending", "--structured_output=prompt").settings
    assert (settings.model, settings.prices) == ("ours", Prices(0.0, 10.0))
    assert (settings.max_cost, settings.requests_per_minute, settings.concurrency) == (3, 9, 2)
    assert settings.text_only and settings.allow_sending
    assert settings.structured_output == "prompt"
    assert (tmp_path / "mine.jsonl").exists()


def test_values_out_of_range_or_of_another_type_are_named(tmp_path, subtests, monkeypatch, capsys):
    for arguments, told in CASES["what_is_missing_or_out_of_range_is_named"]:
        with subtests.test(told), pytest.raises(UserError, match=re.escape(told)):
            _client(tmp_path, *arguments)
    monkeypatch.setenv("CXRJAX_LM_PRICE_IN", "cheap")
    with pytest.raises(UserError, match="CXRJAX_LM_PRICE_IN='cheap'"):
        _client(tmp_path, LOCAL, "--model=m")
    for flag, told in CASES["values_of_another_type_end_with_code_2"]:
        with subtests.test(flag):
            with pytest.raises(SystemExit) as end:
                _client(tmp_path, LOCAL, "--model=m", flag)
            assert end.value.code == 2
            message = capsys.readouterr().err
            assert flag.split("=")[0] in message and told in message
