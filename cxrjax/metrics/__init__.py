"""Metrics: pure functions on arrays and strings.

An undefined figure is NaN here and null in files, never 0. What a figure is where a side is empty,
and where there are boxes on both sides and none overlaps another:

| figure | none, none true | none, some true | some, none true | no overlap |
|---|---|---|---|---|
| precision of boxes | undefined | undefined | 0 | 0 |
| recall of boxes | undefined | 0 | undefined | 0 |
| F1 of boxes | undefined | 0 | 0 | 0 |
| any-overlap precision | undefined | undefined | 0 | 0 |
| any-overlap recall | undefined | 0 | undefined | 0 |
| any-overlap F1 | undefined | 0 | 0 | 0 |
| mean IoU of true positives | undefined | undefined | undefined | undefined |
| share of images well localized | 0 | 0 | 0 | 0 |
| mean IoU of all predictions | undefined | undefined | 0 | 0 |
| share of duplicates | undefined | undefined | 0 | 0 |
| VOC AP | undefined | 0 | undefined | 0 |
| COCO AP | undefined | 0 | undefined | 0 |
| FROC sensitivity | undefined | 0 | undefined | 0 |
| V-score, strict | 1 | 0 | 0 | 0 |
| V-score, lenient | 1 | 0 | 0 | 0 |
| V-score, truth | 1 | 0 | 0 | 0 |
| region IoU | undefined | 0 | 0 | 0 |
| region IoP | undefined | undefined | 0 | 0 |
| region IoT | undefined | 0 | undefined | 0 |
| precision of names | undefined | undefined | 0 | 0 |
| recall of names | undefined | 0 | undefined | 0 |
| F1 of names | undefined | 0 | 0 | 0 |

Figures over many images are sums first and quotients last, so that the table is of all images
together; V-score is each answer's own, and its 1 of two empty sides is flagged (`both_empty`).
"""
