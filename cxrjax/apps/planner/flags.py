"""Options of `plan`; importing them loads no library."""

import dataclasses
from typing import Annotated

from cxrjax.errors import UserError
from cxrjax.flags import Flag, InFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """A configuration, the slice that it runs on, and the estimates to make.

    Attributes:
        config: configuration of the run
        topology: v5e:2x4, v5e-8, v5p-8, v6e-256, h200-8
        json: print one JSON object
        formula: compile nothing, for TPUs either
        decode: also the decode loop
        serve: slots of a server on one chip
        find_batch: search the largest batch
        sweep: compare meshes and remat policies
        compiles: at most, for the two searches
        kept_only: compile nothing; by formula what is not kept
        kept: folder of compiled figures
    """

    config: Annotated[str, Flag("FILE[:VARIANT]")]
    topology: Annotated[str, Flag("NAME")]
    json: bool = False
    formula: bool = False
    decode: bool = False
    serve: bool = False
    find_batch: bool = False
    sweep: bool = False
    compiles: Annotated[int, Flag("N")] = 5
    kept_only: bool = False
    kept: InFolder = None

    def __post_init__(self) -> None:
        several = [f"--{name}" for name in ("find_batch", "sweep") if getattr(self, name)]
        for wrong, told in (
            (len(several) > 1, f"{' and '.join(several)}: one of them at a time"),
            (self.decode and several, f"--decode plans one batch: omit it or {''.join(several)}"),
            (self.decode and self.formula, "--decode has no formula: omit it or --formula"),
            (self.json and self.sweep, "--json prints one plan: omit it or --sweep"),
            (self.compiles < 1, f"--compiles={self.compiles}: expected 1 or more"),
            (
                self.serve and (several or self.decode or self.formula or self.kept_only),
                "--serve is always compiled: omit --formula, --kept_only and other searches",
            ),
        ):
            if wrong:
                raise UserError(told)
