"""Makes a page of CXR-QBA's records for a radiologist to inspect, or to judge grades by.

    cxrjax audit_cxr_qba --build=BUILD --out=DIR [--image_root=IMAGES]
    cxrjax audit_cxr_qba --build=BUILD --out=DIR --count=200 --by_grade
    cxrjax audit_cxr_qba --sheet=DIR/sheet.csv

DIR/page.html shows each record as it is asked and answered, with its boxes, the report's sentences
and what `record_checks` finds. DIR/sheet.csv has a line for each: `right` is filled in with yes, no
or unsure, `grade` with A++ to D where the radiologist cares to. With --sheet, the filled sheet says
how many answers of each grade are right, and how grades agree. The page holds what reports say:
their terms hold for it.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser, run
from cxrjax.paths import in_path, out_path


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the page and the sheet, or reads a filled one."""
    parser = command_parser("papers.cxr_qba.commands.audit_cxr_qba", __doc__)
    add = parser.add_argument
    add("--build", type=in_path, help="folder of a build of cxr_qba")
    add("--out", type=out_path, help="folder to write to")
    add("--sheet", type=in_path, help="a filled sheet, to be read")
    add("--count", type=int, default=60, help="records (default 60)")
    add("--by_grade", action="store_true", help="as many of each grade, as far as there are")
    add("--image_root", type=in_path, help="folder of the images (default: boxes alone)")
    add("--seed", type=int, default=0, help="decides which (default 0)")
    flags = parser.parse_args(argv)
    from cxrjax.papers.cxr_qba import audit

    if flags.sheet:
        print(audit.agreement(flags.sheet))
        return
    if not flags.build or not flags.out or flags.count < 1:
        parser.error("expected --build and --out, and --count of at least 1; or --sheet")
    count, faulty = audit.write_audit(
        flags.build, flags.out, flags.count, flags.by_grade, flags.seed, flags.image_root
    )
    print(f"{flags.out / audit.PAGE}: {count} records, {faulty} with a contradiction")


if __name__ == "__main__":
    run(main)
