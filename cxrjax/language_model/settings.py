"""Settings of a language model: address, terms and prices."""

import dataclasses
import ipaddress
import re
from typing import Any, Literal
from urllib.parse import urlsplit

from cxrjax.errors import UserError

StructuredOutput = Literal["json_schema", "json_object", "prompt"]
TokenLimitField = Literal["max_completion_tokens", "max_tokens"]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Per million tokens, in whatever currency `max_cost` is meant in."""

    input: float
    output: float

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """Returns the cost of one answer, or of many."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclasses.dataclass(frozen=True)
class Settings:
    """Address, model and limits."""

    base_url: str  # of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`
    model: str
    # Sent to that server alone; in no representation, message or file.
    api_key: str = dataclasses.field(default="", repr=False)
    # None leaves it to the server (reasoning models refuse the parameter).
    temperature: float | None = None
    # How an answer is made to be JSON: the server holds the model to the schema ("json_schema"), to
    # some JSON object ("json_object"), or the prompt asks for it ("prompt"). The answer is checked
    # in every case.
    structured_output: StructuredOutput = "json_schema"
    # What the server calls the limit of an answer's tokens. Older servers know `max_tokens` only,
    # and ignore the newer name.
    token_limit_field: TokenLimitField = "max_completion_tokens"
    # Seconds from the beginning of an attempt until its answer is there, whole.
    timeout: float = 180.0
    attempts: int = 6  # how often one request is sent while the server is busy, failing or silent
    answers: int = 3  # how many answers are asked for, the first included, until one is valid
    requests_per_minute: float | None = None  # None: as fast as answers come
    concurrency: int = 4  # requests under way at once
    # What one image is taken to cost in estimates and for `max_cost`; about 800 to 2,600 for 1024 x
    # 1024 pixels, differing by model.
    image_tokens: int = 2600
    prices: Prices | None = None  # None where they are not known; the cost is then not known either
    max_cost: float | None = None  # what this run may spend; answers from the cache are free
    allow_sending: bool = False  # whether content may leave this machine
    text_only: bool = False  # leave images out, for models without vision

    def __post_init__(self) -> None:
        """Refuses what can't work, before anything is sent.

        Raises:
            UserError: no URL, no model, a cost limit without prices, or a key that cannot be sent,
                or would be sent unencrypted.
        """
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            usable = usable and self.base_url.isprintable() and not parts.query + parts.fragment
        except ValueError:  # brackets of an IPv6 address, or a port that is none
            usable = False
        if not usable:
            # What may be a password or a key is not shown.
            shown = re.sub("//[^/]*@", "//...@", re.split("[?#]", self.base_url)[0])
            raise UserError(
                f"base URL {shown!r}: expected http(s)://HOST[:PORT]/PATH, most often ending in /v1"
            )
        if parts.username or parts.password:
            raise UserError("the base URL contains a password; pass the key in CXRJAX_LM_API_KEY")
        if any(not "!" <= character <= "~" for character in self.api_key):
            raise UserError(
                "CXRJAX_LM_API_KEY contains a space, the end of a line or a letter beyond ASCII; "
                "set only the key"
            )
        if self.api_key and parts.scheme == "http" and not self.is_local:
            raise UserError(
                f"{self.host}: the key would go there unencrypted, for all on the way to read; "
                "use https, a tunnel that starts on this machine, or unset CXRJAX_LM_API_KEY"
            )
        if not self.model:
            raise UserError("no language model named; pass --model=NAME or CXRJAX_LM_MODEL")
        if self.max_cost is not None and self.prices is None:
            raise UserError(
                "--max_cost needs --price_in and --price_out (per million tokens): "
                "without prices the cost of a request is unknown"
            )

    @property
    def host(self) -> str:
        """Name or address of the server, with the port where one is given."""
        return urlsplit(self.base_url).netloc

    @property
    def is_local(self) -> bool:
        """Returns whether the server is on this machine: a loopback address, or `localhost`.

        What is sent there does not leave the machine, so no permission is asked. (A tunnel that
        begins on loopback and ends elsewhere looks local too: whoever digs one knows.)
        """
        host = urlsplit(self.base_url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def may_send(self) -> bool:
        """Returns whether content may be sent to the server."""
        return self.is_local or self.allow_sending

    def to_json(self) -> dict[str, Any]:
        """Returns all settings but the key, for manifests."""
        fields = dataclasses.asdict(self)
        del fields["api_key"]
        return fields
