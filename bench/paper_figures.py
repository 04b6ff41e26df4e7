"""Draws the figures that papers have of their data sets, from the folder of a build.

    python -m bench.paper_figures --build=BUILD --out=DIR

GEMeX: Figures 3 to 7, refined sentences by region, lengths and words of questions and reasons,
contents, and classes of the test images; one without data is left out, and so is 5 without its
library (extra `figures`). ViX-Ray, section 3.2: body parts in findings and diagnoses in
impressions, counted in phrases.json and drawn.
"""

import argparse
import collections
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.vix_ray_phrases import body_parts, diagnoses
from cxrjax.cli import run
from cxrjax.errors import UserError, optional
from cxrjax.files import read_json_object, write_json, writing
from cxrjax.papers.gemex.construct.construction import TARGET_MIX
from cxrjax.papers.gemex.statistics import SPLITS
from cxrjax.paths import in_path, out_path
from cxrjax.records import QARecord, read_records
from cxrjax.records_io.builder import records_files

_WORDS, _CLOUD_WORDS = 30, 120
_INK, _PAPER_INK = "#33608c", "#c98b2b"
_STOP_WORDS = re.compile(
    "the|and|that|there|this|can|are|was|what|which|where|how|does|did|not|any|for|with"
)
Named = Iterator[tuple[str, Figure]]


def draw(build: Path, out: Path) -> list[str]:
    """Draws what a build has data for; returns the files' names.

    Raises:
        UserError: the build cannot be read, has no such figures, or the folder cannot be written.
    """
    dataset = str(read_json_object(build / "manifest.json")["dataset"])
    if dataset not in _OF:
        raise UserError(f"{build}: of {dataset}; expected a build of {' or '.join(_OF)}")
    files_read = (file for file in records_files(build) if file.stem in SPLITS)  # stages beside it
    records = [record for file in files_read for record in read_records(file)]
    files = []
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in _OF[dataset](build, out, records):
            files.append(f"{name}.png")
            FigureCanvasAgg(figure)
            # Without the software's version the same build gives the same bytes.
            with (out / files[-1]).open("wb") as file:
                figure.savefig(file, dpi=110, format="png", metadata={"Software": None})
    return files


def _gemex(build: Path, out: Path, records: Sequence[QARecord]) -> Named:
    counted = read_json_object(build / "statistics.json")

    def percent(name: str) -> dict[str, float]:
        start = f"{name}_percent/"
        return {k.removeprefix(start): v["value"] for k, v in counted.items() if start in k}

    regions = {name: share for name, share in percent("region").items() if share}
    if regions:
        title = "Refined sentences by region, percent"
        yield "figure_3_regions", _bars(title, sorted(regions.items(), key=lambda one: one[::-1]))
    splits = [split for split in SPLITS if any(record.split == split for record in records)]
    yield "figure_4_lengths", _lengths(records, splits)
    yield from _clouds(records)
    yield "figure_6_content_types", _contents(records, splits)
    classes = {name: share for name, share in percent("test_class").items() if share is not None}
    if classes:
        yield "figure_7_classes", _classes(classes)


def _vix_ray(build: Path, out: Path, records: Sequence[QARecord]) -> Named:
    texts = {
        kind: [r.answer_text for r in records if (r.question_strategy, r.question_type) == kind]
        for kind in (("stage1", "findings"), ("stage2", "impression"))
    }
    findings, impressions = texts.values()
    phrases = {"body_parts": body_parts(findings), "diagnoses": diagnoses(impressions)}
    ordered = {
        name: sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        for name, counts in phrases.items()
    }
    write_json(out / "phrases.json", {name: dict(counts) for name, counts in ordered.items()})
    for name, counts in ordered.items():
        yield name, _bars(name.replace("_", " "), counts[:_WORDS][::-1])


_OF: dict[str, Callable[[Path, Path, Sequence[QARecord]], Named]] = {
    "gemex": _gemex,
    "vix_ray": _vix_ray,
}


def _bars(title: str, counts: Sequence[tuple[str, float]]) -> Figure:
    figure = Figure(figsize=(8, 0.24 * len(counts) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.barh([name for name, _ in counts], [count for _, count in counts], color=_INK)
    axes.set(title=title)
    return figure


def _lengths(records: Sequence[QARecord], splits: Sequence[str]) -> Figure:
    figure = Figure(figsize=(9, 2.4 * len(splits)), layout="constrained")
    grid = figure.subplots(len(splits), 2, squeeze=False)
    for row, split in zip(grid, splits, strict=True):
        for axes, name in zip(row, ("question", "reason"), strict=True):
            lengths = [len(getattr(one, name) or "") for one in records if one.split == split]
            axes.hist(lengths, bins=40, color=_INK)
            axes.set(title=f"{split}: {name}", xlabel="characters")
    return figure


def _clouds(records: Iterable[QARecord]) -> Named:
    """Yields clouds, as the paper has them, above bars with frequencies."""
    try:
        wordcloud = optional("wordcloud", "figures")
    except UserError as error:
        print(f"figure_5_words: left out, {error}")
        return
    figure = Figure(figsize=(9, 10), layout="constrained")
    grid = figure.subplots(2, 2, height_ratios=(3, 7))
    for (above, below), name in zip(grid.T, ("question", "reason"), strict=True):
        texts = ((getattr(record, name) or "").lower() for record in records)
        said = (word for text in texts for word in re.findall(r"[a-z]{3,}", text))
        words = collections.Counter(word for word in said if not _STOP_WORDS.fullmatch(word))
        above.set_title(f"Most frequent words of {name}s")
        above.axis("off")
        if not words:
            below.axis("off")
            continue
        how = {"width": 660, "height": 440, "max_words": _CLOUD_WORDS, "random_state": 0}
        ink = {"background_color": "white", "color_func": lambda *_, **__: _INK}
        cloud = wordcloud.WordCloud(**how, **ink).generate_from_frequencies(words)
        above.imshow(cloud.to_array(), interpolation="none")
        common = words.most_common(_WORDS)[::-1]
        below.barh([word for word, _ in common], [count for _, count in common], color=_INK)
    yield "figure_5_words", figure


def _contents(records: Sequence[QARecord], splits: Sequence[str]) -> Figure:
    figure = Figure(figsize=(4 * len(splits) + 1, 3.4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        asked = [record.content_type or "not stated" for record in records if record.split == split]
        common = collections.Counter(asked).most_common()
        bars = axes.bar([name for name, _ in common], [count for _, count in common], color=_INK)
        axes.margins(y=0.1)
        shares = [f"{100 * count / len(asked):.1f}%" for _, count in common]
        axes.bar_label(bars, shares, fontsize=7)
        axes.set_title(split)
        axes.tick_params(axis="x", rotation=60)
    return figure


def _classes(shares: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    names = list(TARGET_MIX)[::-1]
    sides: dict[str, tuple[Mapping[str, Any], float, str]] = {
        "built": (shares, 0.2, _INK),
        "paper": (TARGET_MIX, -0.2, _PAPER_INK),
    }
    for label, (values, by, ink) in sides.items():
        places = [place + by for place in range(len(names))]
        axes.barh(places, [values.get(n, 0) for n in names], height=0.4, color=ink, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("percent of the test images' labels")
    axes.legend()
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the figures and prints their names."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.paper_figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--build", required=True, type=in_path, help="folder of a build")
    parser.add_argument("--out", required=True, type=out_path, help="folder to write to")
    flags = parser.parse_args(argv)
    print(f"{flags.out}: {', '.join(draw(flags.build, flags.out))}")


if __name__ == "__main__":
    run(main)
