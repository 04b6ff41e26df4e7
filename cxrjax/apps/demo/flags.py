"""Options of `demo_app`; importing them loads no library."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.flags import Flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """Models to try, and the page's address.

    Attributes:
        base: base directory, or a run (default data/real_base)
        tuned: workdir of a training run (default runs/demo/train, which `make demo` leaves)
        server: address of a server of models, in place of --base and --tuned
        models: of --server, by name (default: the first two)
        allow_sending: images may be sent to a server on another machine
        host: default 127.0.0.1: this machine only
        allowed_host: name of a proxy before the page; may be repeated
        port: default 7860; 0: any free one
        max_megabytes: of an upload
    """

    base: Annotated[Path, Flag("DIR", shipped)] = Path("data/real_base")
    tuned: Annotated[Path, Flag("DIR")] = Path("runs/demo/train")
    server: Annotated[str | None, Flag("URL")] = None
    models: Annotated[str, Flag("A,B")] = ""
    allow_sending: bool = False
    host: str = "127.0.0.1"
    allowed_host: Annotated[Sequence[str], Flag("NAME")] = ()
    port: int = 7860
    max_megabytes: int = 200

    def __post_init__(self) -> None:
        if self.max_megabytes < 1:
            raise UserError(f"--max_megabytes={self.max_megabytes}: expected at least 1")
        if self.models and not self.server:
            raise UserError(f"--models={self.models}: names models of a --server; add its address")
