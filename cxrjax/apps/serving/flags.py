"""Options of a server; importing them loads no library."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

from cxrjax.errors import UserError
from cxrjax.evaluation.flags import ModelFlags
from cxrjax.flags import Flag, InFile, InFolder

# Options of a model that serving has not.
NOT_SERVED = (
    *("image_root", "image", "images_per_batch", "beams", "length_penalty", "temperature"),
    *("top_k", "top_p", "best_of", "seed"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsFlags:
    """Models that are served.

    Attributes:
        name: of that model in requests (default: its folder's name)
        adapter: an adapter on --checkpoint: a run, or a PEFT folder; may be repeated
        conformal: of other patients, to widen boxes by, as of predict
        cover: of true boxes
    """

    name: str | None = None
    adapter: Annotated[Sequence[str], Flag("NAME=DIR")] = ()
    conformal: InFolder = None
    cover: Annotated[float, Flag("SHARE")] = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeFlags(ModelFlags, ModelsFlags):
    """The server's address, who may ask, and its limits.

    Attributes:
        host: default 127.0.0.1: this machine alone
        port: default 8000; 0: any free one
        allowed_host: name of a proxy before it
        token: that a client must have; may be repeated
        token_file: lines NAME=TOKEN; # begins a comment
        mesh: devices that the model is split over, such as tensor=2 or fsdp=4 (default: one device)
        slots: questions that are answered at a time
        queue: questions that may wait besides
        longest_prompt: tokens of a question, at most
        seconds: that an answer may take
        drain_seconds: that answers have at SIGTERM
        max_megabytes: of a request
        image_cache_megabytes: of images that were read
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: Annotated[Sequence[str], Flag("NAME")] = ()
    token: Sequence[str] = ()
    token_file: InFile = None
    mesh: Annotated[str, Flag("AXIS=N")] = ""
    slots: int = 16
    queue: int = 128
    longest_prompt: int = 128
    seconds: float = 60.0
    drain_seconds: int = 30
    max_megabytes: int = 50
    image_cache_megabytes: int = 512
    group: ClassVar[str] = "server"

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "queue",
            "longest_prompt",
            "seconds",
            "max_megabytes",
            "drain_seconds",
        ):
            if not getattr(self, name) > 0:
                raise UserError(f"--{name}={getattr(self, name)}: expected above 0")
        if self.image_cache_megabytes < 0:
            raise UserError("--image_cache_megabytes: expected 0 or more")
