"""Compares CXR-QBA's tags and boxes with what people said of the same studies.

    python -m bench.cxr_qba_validation --of=tags --labels=LABELS.csv --graphs=GRAPHS --out=DIR
    python -m bench.cxr_qba_validation --of=boxes --labels=MS_CXR.csv --graphs=GRAPHS --out=DIR

This scores a data set, not a model: the graphs are the release's, or `native/` of a build. The
labels are a label table (tags.py), MS-CXR's file or REFLACX's folder (boxes.py). Writes what
`score` writes: metrics.json, tables.md, tables.csv, score.json.
"""
