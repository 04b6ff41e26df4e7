"""VinDr-CXR-VQA's figures of anybody's records: their classes, no values of a paper."""

from dataclasses import replace

from cxrjax.evaluation.counted import STRICT
from cxrjax.evaluation.layout import Layout
from cxrjax.files import read_packaged
from cxrjax.papers.vindr_cxr_vqa.figures import VINDR_CXR_VQA
from cxrjax.papers.vindr_cxr_vqa.truth import read_references


def _layout(of: Layout) -> Layout:
    """The layout without what is the paper's."""
    own = read_packaged(str(__package__), "own.toml")
    tables = tuple(
        replace(
            table,
            title=own["tables"][table.key],
            printed={},
            notes=(),
            protocols=(STRICT,),
            # Under both protocols the metric of the strict one: the other is the paper's mistake.
            columns=tuple(
                replace(column, metrics=dict.fromkeys(column.metrics, column.metrics["strict"]))
                for column in table.columns
            ),
        )
        for table in of.tables
    )
    lists = tuple(replace(listed, title=own["list_title"]) for listed in of.lists)
    breakdowns = tuple(replace(one, only_filled=True) for one in of.breakdowns)
    return replace(
        of,
        title=own["title"],
        heading=own["heading"],
        citation="",
        data_set="",
        tables=tables,
        lists=lists,
        breakdowns=breakdowns,
        paper_rows={},
        default_row="",
        takes=("codec", "judge", "radeval"),
        free_text=("*",),
    )


OWN = replace(
    VINDR_CXR_VQA,
    name="own",
    layout=_layout(VINDR_CXR_VQA.layout),
    read=lambda records, source, gt_mode: read_references(
        records, gt_mode, source, own_classes=True
    ),
)
