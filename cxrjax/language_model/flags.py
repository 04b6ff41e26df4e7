"""A language model from flags and the environment."""

import argparse
import math
import os
from pathlib import Path
from typing import get_args

from cxrjax.errors import UserError
from cxrjax.language_model.answer_cache import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.settings import Prices, Settings, StructuredOutput, TokenLimitField

BASE_URL = "CXRJAX_LM_BASE_URL"


MODEL = "CXRJAX_LM_MODEL"


API_KEY = "CXRJAX_LM_API_KEY"


PRICE_IN = "CXRJAX_LM_PRICE_IN"


PRICE_OUT = "CXRJAX_LM_PRICE_OUT"


def add_client_flags(parser: argparse.ArgumentParser, text: bool = False) -> None:
    """Declares the flags, as a group of their own.

    Args:
        text: answers are text of any form: without `--structured_output`, and without
            `--temperature`, which the caller has.
    """
    group = parser.add_argument_group(
        "language model",
        "An OpenAI-compatible server. Flags override the environment's CXRJAX_LM_BASE_URL, "
        "CXRJAX_LM_MODEL, CXRJAX_LM_PRICE_IN and CXRJAX_LM_PRICE_OUT; the key is read from "
        "CXRJAX_LM_API_KEY alone.",
    )
    add = group.add_argument
    add("--base_url", metavar="URL", help="such as http://127.0.0.1:8000/v1")
    add("--model", metavar="NAME", help="the model's name, as the server knows it")
    if not text:
        add("--temperature", type=_not_negative, help="of sampling (default: the server's own)")
        add(
            "--structured_output",
            choices=get_args(StructuredOutput),
            default="json_schema",
            help="how answers are made to be JSON; `prompt` for servers that know neither of the "
            "others (default json_schema)",
        )
    add(
        "--token_limit_field",
        choices=get_args(TokenLimitField),
        default="max_completion_tokens",
        help="max_tokens for older servers (default max_completion_tokens)",
    )
    add("--text_only", action="store_true", help="send no images: for models without vision")
    add("--requests_per_minute", type=_positive, metavar="N", help="default: no limit")
    add("--concurrency", type=_count, default=4, metavar="N", help="requests at once (default 4)")
    add("--timeout", type=_positive, default=180.0, metavar="S", help="seconds (default 180)")
    add("--price_in", type=_not_negative, metavar="P", help="of a million input tokens")
    add("--price_out", type=_not_negative, metavar="P", help="of a million output tokens")
    add("--image_tokens", type=_count, default=2600, metavar="N", help="of an image (default 2600)")
    add("--max_cost", type=_not_negative, metavar="C", help="what this run may spend")
    add("--cache", type=Path, metavar="FILE", help="answers already paid for (default: in --out)")
    add("--dry_run", action="store_true", help="count requests, tokens and cost; send nothing")
    add(
        "--allow_sending",
        action="store_true",
        help="content may leave this machine: the data's terms allow it",
    )


def client_from_flags(
    flags: argparse.Namespace, cache: Path, temperature: float | None = None
) -> Client:
    """The client that the flags of `add_client_flags` describe.

    Args:
        cache: the file where `--cache` names none.
        temperature: where the flags were declared for text.

    Raises:
        UserError: the address or the model is named nowhere, one price stands alone, a price in
            the environment is no number, or the cache cannot be used.
    """
    base_url = flags.base_url or os.environ.get(BASE_URL)
    if not base_url:
        raise UserError(f"no server named; give --base_url=URL or {BASE_URL}")
    settings = Settings(
        base_url=base_url,
        model=flags.model or os.environ.get(MODEL, ""),
        api_key=os.environ.get(API_KEY, ""),
        temperature=flags.temperature if temperature is None else temperature,
        structured_output=getattr(flags, "structured_output", "prompt"),
        token_limit_field=flags.token_limit_field,
        timeout=flags.timeout,
        requests_per_minute=flags.requests_per_minute,
        concurrency=flags.concurrency,
        image_tokens=flags.image_tokens,
        prices=_prices(flags),
        max_cost=flags.max_cost,
        allow_sending=flags.allow_sending,
        text_only=flags.text_only,
    )
    return Client(settings, AnswerCache(flags.cache or cache))


def _prices(flags: argparse.Namespace) -> Prices | None:
    price_in, price_out = _price(flags.price_in, PRICE_IN), _price(flags.price_out, PRICE_OUT)
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise UserError("one price alone: give both --price_in and --price_out, or neither")
    return Prices(price_in, price_out)


def _price(flag: float | None, variable: str) -> float | None:
    text = os.environ.get(variable)
    if flag is not None or not text:
        return flag
    try:
        return _not_negative(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{variable}={error}, a million tokens' price") from None


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def _not_negative(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 0 or more")
    return value


def _count(text: str) -> int:
    value = _number(text)
    if not (value.is_integer() and value >= 1):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(value)


def _number(text: str) -> float:
    """NaN of what is none, which no range holds."""
    try:
        return float(text)
    except ValueError:
        return math.nan
