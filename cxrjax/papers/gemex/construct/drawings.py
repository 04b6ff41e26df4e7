"""Draws the paper's Figures 3 to 7 from what was built."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cxrjax.errors import UserError, optional
from cxrjax.files import writing
from cxrjax.papers.gemex.construct.construction import TARGET_MIX
from cxrjax.papers.gemex.statistics import GemexStatistics, in_order

_WORDS = 30
_CLOUD_WORDS = 120
_INK, _PAPER_INK = "#33608c", "#c98b2b"


def draw_figures(folder: Path, statistics: GemexStatistics) -> list[Path]:
    """Writes figure_3_regions.png to figure_7_classes.png; one without data is left out, and so is
    figure 5 without its library (extra `figures`).

    Raises:
        UserError: the folder cannot be written.
    """
    drawn = {
        "figure_3_regions": _regions(statistics.regions),
        "figure_4_lengths": _lengths(statistics),
        "figure_5_words": _words(statistics),
        "figure_6_content_types": _contents(statistics),
        "figure_7_classes": _classes(statistics),
    }
    files = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            if figure is not None:
                files.append(folder / f"{name}.png")
                FigureCanvasAgg(figure)
                # Without the software's version the same build gives the same bytes.
                with files[-1].open("wb") as file:
                    figure.savefig(file, dpi=110, format="png", metadata={"Software": None})
    return files


def _regions(counts: Mapping[str, int]) -> Figure | None:
    if not counts:
        return None
    names = sorted(counts, key=lambda name: (counts[name], name))
    figure = Figure(figsize=(8, 0.24 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [counts[name] for name in names], color=_INK)
    axes.set(title="Refined sentences by region", xlabel="number")
    return figure


def _lengths(statistics: GemexStatistics) -> Figure | None:
    splits = in_order(statistics.question_lengths)
    if not splits:
        return None
    figure = Figure(figsize=(9, 2.4 * len(splits)), layout="constrained")
    grid = figure.subplots(len(splits), 2, squeeze=False)
    sides = (("question", statistics.question_lengths), ("reason", statistics.reason_lengths))
    for row, split in zip(grid, splits, strict=True):
        for axes, (name, lengths) in zip(row, sides, strict=True):
            counts = lengths[split]
            axes.hist(list(counts), weights=list(counts.values()), bins=40, color=_INK)
            axes.set(title=f"{split}: {name}", xlabel="characters")
    return figure


def _words(statistics: GemexStatistics) -> Figure | None:
    """Draws a cloud, as the paper does, and bars with frequencies."""
    if not statistics.question_words:
        return None
    try:
        wordcloud = optional("wordcloud", "figures")
    except UserError as error:
        print(f"figure_5_words: left out, {error}")
        return None
    figure = Figure(figsize=(9, 10), layout="constrained")
    sides = (("questions", statistics.question_words), ("reasons", statistics.reason_words))
    grid = figure.subplots(2, 2, height_ratios=(3, 7))
    for (above, below), (name, words) in zip(grid.T, sides, strict=True):
        above.set_title(f"Most frequent words of {name}")
        above.axis("off")
        if not words:
            below.axis("off")
            continue
        how = {"width": 660, "height": 440, "max_words": _CLOUD_WORDS, "random_state": 0}
        ink = {"background_color": "white", "color_func": lambda *_, **__: _INK}
        cloud = wordcloud.WordCloud(**how, **ink)
        above.imshow(cloud.generate_from_frequencies(words).to_array(), interpolation="none")
        common = words.most_common(_WORDS)[::-1]
        below.barh([word for word, _ in common], [count for _, count in common], color=_INK)
    return figure


def _contents(statistics: GemexStatistics) -> Figure | None:
    splits = in_order(statistics.contents)
    if not splits:
        return None
    figure = Figure(figsize=(4 * len(splits) + 1, 3.4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        common = statistics.contents[split].most_common()
        bars = axes.bar([name for name, _ in common], [count for _, count in common], color=_INK)
        total = sum(count for _, count in common)
        axes.margins(y=0.1)
        axes.bar_label(bars, [f"{100 * count / total:.1f}%" for _, count in common], fontsize=7)
        axes.set_title(split)
        axes.tick_params(axis="x", rotation=60)
    return figure


def _classes(statistics: GemexStatistics) -> Figure | None:
    total = sum(statistics.classes.values())
    if not total:
        return None
    names = list(TARGET_MIX)[::-1]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    ours = [100 * statistics.classes[name] / total for name in names]
    places = range(len(names))
    axes.barh([p + 0.2 for p in places], ours, height=0.4, color=_INK, label="built")
    paper = [TARGET_MIX[name] for name in names]
    axes.barh([p - 0.2 for p in places], paper, height=0.4, color=_PAPER_INK, label="paper")
    axes.set_yticks(list(places), names)
    axes.set_xlabel("percent of the test images' labels")
    axes.legend()
    return figure
