"""A language model from flags and the environment."""

import dataclasses
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cxrjax.errors import UserError
from cxrjax.language_model.settings import Prices, Settings, StructuredOutput, TokenLimitField

if TYPE_CHECKING:
    from cxrjax.language_model.client import Client

CACHE_NAME = "language_model_answers.jsonl"  # in a build's folder
BASE_URL = "CXRJAX_LM_BASE_URL"
MODEL = "CXRJAX_LM_MODEL"
API_KEY = "CXRJAX_LM_API_KEY"
PRICE_IN = "CXRJAX_LM_PRICE_IN"
PRICE_OUT = "CXRJAX_LM_PRICE_OUT"


@dataclasses.dataclass(frozen=True)
class ServerFlags:
    """Flags of a model behind an OpenAI-compatible server, whose answers are text of any form.

    They override the environment's CXRJAX_LM_BASE_URL, CXRJAX_LM_MODEL, CXRJAX_LM_PRICE_IN and
    CXRJAX_LM_PRICE_OUT; the key is read from CXRJAX_LM_API_KEY alone.

    Attributes:
        base_url: such as http://127.0.0.1:8000/v1
        model: the model's name, as the server knows it
        token_limit_field: max_tokens for older servers
        text_only: send no images: for models without vision
        requests_per_minute: default: no limit
        concurrency: requests at once
        timeout: seconds
        price_in: of a million input tokens
        price_out: of a million output tokens
        image_tokens: of an image
        max_cost: what this run may spend
        cache: answers already paid for (default: in --out)
        dry_run: count requests, tokens and cost; send nothing
        allow_sending: content may leave this machine: the data's terms allow it
    """

    base_url: str | None = None
    model: str | None = None
    token_limit_field: TokenLimitField = "max_completion_tokens"
    text_only: bool = False
    requests_per_minute: float | None = None
    concurrency: int = 4
    timeout: float = 180.0
    price_in: float | None = None
    price_out: float | None = None
    image_tokens: int = 2600
    max_cost: float | None = None
    cache: Path | None = None
    dry_run: bool = False
    allow_sending: bool = False
    group: ClassVar[str] = "language model"

    def __post_init__(self) -> None:
        for names, lowest, expected in _RANGES:
            for name in names:
                value = getattr(self, name, None)
                if value is not None and not lowest <= value < math.inf:
                    raise UserError(f"--{name}={value}: expected {expected}")


@dataclasses.dataclass(frozen=True)
class ClientFlags(ServerFlags):
    """Flags of a language model behind an OpenAI-compatible server, whose answers are JSON.

    Attributes:
        temperature: of sampling (default: the server's own)
        structured_output: how answers are made to be JSON; `prompt` for servers that know neither
            of the others
    """

    temperature: float | None = None
    structured_output: StructuredOutput = "json_schema"
    group: ClassVar[str] = ServerFlags.group


_ABOVE_ZERO = math.nextafter(0, 1)
_RANGES = (
    (("requests_per_minute", "timeout"), _ABOVE_ZERO, "a number above 0"),
    (("temperature", "price_in", "price_out", "max_cost"), 0, "a number, 0 or more"),
    (("concurrency", "image_tokens"), 1, "a whole number from 1 on"),
)


def client_from_flags(
    flags: ServerFlags,
    cache: Path,
    datasets: Iterable[str],
    temperature: float | None = None,
) -> "Client":
    """The client that the flags describe.

    Args:
        cache: the file where `--cache` names none.
        datasets: as in `Client`.
        temperature: where the flags are for text.

    Raises:
        UserError: a number is out of range, the address or the model is named nowhere, one price
            stands alone, a price in the environment is no number, or the cache cannot be used.
    """
    from cxrjax.language_model.account import AnswerCache
    from cxrjax.language_model.client import Client

    base_url = flags.base_url or os.environ.get(BASE_URL)
    if not base_url:
        raise UserError(f"no server named; pass --base_url=URL or {BASE_URL}")
    taken = {field.name for field in dataclasses.fields(Settings)}
    shared: dict[str, Any] = {"structured_output": "prompt"}
    shared |= {name: value for name, value in vars(flags).items() if name in taken}
    shared |= {"base_url": base_url, "model": flags.model or os.environ.get(MODEL, "")}
    if temperature is not None:
        shared["temperature"] = temperature
    api_key = os.environ.get(API_KEY, "")
    settings = Settings(**shared, api_key=api_key, prices=_prices(flags))
    return Client(settings, AnswerCache(flags.cache or cache), datasets)


def _prices(flags: ServerFlags) -> Prices | None:
    price_in = _price(flags.price_in, PRICE_IN)
    price_out = _price(flags.price_out, PRICE_OUT)
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise UserError("only one price; pass both --price_in and --price_out, or neither")
    return Prices(price_in, price_out)


def _price(flag: float | None, variable: str) -> float | None:
    text = os.environ.get(variable)
    if flag is not None or not text:
        return flag
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(
            f"{variable}={text!r}: expected a number, 0 or more, a million tokens' price"
        )
    return value
