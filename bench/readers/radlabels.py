"""Beside radlabels 0.2.0 (MIT): its labels of its 1,000 synthetic reports, study by study.

They are RadGraph's statuses under a dictionary of radiologists' phrases. Where a report says
several things of a class, present stands before uncertain before absent, here and there alike.
"""

import importlib.util
import json
import random
import tomllib
from collections import Counter
from pathlib import Path

from bench.readers.grading import rate
from cxrjax.evaluation.text_tables import grid
from cxrjax.radiology_text.reader import ReportReader

_STATUSES = ("present", "uncertain", "absent", "none")


def compared(examples: int) -> str:
    """Agreement by class in Markdown, and some disagreements drawn at random."""
    found = importlib.util.find_spec("radlabels")
    if found is None or not found.submodule_search_locations:
        return "radlabels is not installed; make readers installs it."
    samples = Path(found.submodule_search_locations[0]) / "samples"
    labels = json.loads((samples / "synthetic_labels.json").read_text())
    matches = json.loads((samples / "synthetic_matches.json").read_text())
    classes = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    reader = ReportReader()
    said: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in classes}
    differing = []
    for identity, theirs in labels.items():
        text = (samples / f"synthetic_reports/{identity}.txt").read_text()
        ours: dict[str, set[str]] = {}
        for one in reader.read(text):
            if one.is_now:
                ours.setdefault(one.finding, set()).add(one.status)
        for name, findings in classes.items():
            told = set().union(*(ours.get(finding, ()) for finding in findings)) | {"none"}
            mine = next(status for status in _STATUSES if status in told)
            label = theirs.get(name, "none").removeprefix("definitely ")
            said[name][label, mine] += 1
            if label != mine:
                why = [m["alias"] for m in matches[identity]["matches"] if m["disease"] == name]
                differing.append(f"{identity} {name}: {label} ({', '.join(why)}), read {mine}")
    lines = [["class", "theirs or ours", "same status", "theirs alone", "ours alone", "opposite"]]
    for name, counts in sorted(said.items()):
        total = sum(counts.values()) - counts["none", "none"]
        same = sum(counts[status, status] for status in _STATUSES[:3])
        theirs_alone = sum(counts[status, "none"] for status in _STATUSES[:3])
        ours_alone = sum(counts["none", status] for status in _STATUSES[:3])
        opposite = counts["present", "absent"] + counts["absent", "present"]
        cells = (total, rate([(same, total)]), theirs_alone, ours_alone, opposite)
        lines.append([name, *map(str, cells)])
    drawn = random.Random(0).sample(differing, min(examples, len(differing)))
    return "\n".join([grid(lines), *drawn])
