"""The card of a training run: `README.md` in the form of Hugging Face's model cards, `card.html`.

Both say the same: what was trained from what, on what data, with which settings that its recipe
does not have, what came out, on which terms. They are made from what the run leaves in its work
directory, so that a run that went on has one as well, of all of its steps.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cxrjax.errors import UserError
from cxrjax.evaluation.text_tables import template
from cxrjax.family_tables import family_tables
from cxrjax.files import read_json_lines, read_json_object, read_packaged, replace_text
from cxrjax.paper import data_terms
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.config_file import load_config
from cxrjax.training.metric_log import FILE_NAME
from cxrjax.training.run import QUALITY_FILE, RUN_FILE
from cxrjax.training.workdir import storage_errors
from cxrjax.untrusted.foreign_files import read_text

MARKDOWN, HTML = "README.md", "card.html"
# A card that somebody has edited, and taken this line from, stays.
_OURS = "# Written by cxrjax at a run's end; without this line it is never written again."
# Of the values in metrics.jsonl, those that tell of the work and not of the model, and those that
# one looks at where coordinates go wrong.
_OF_THE_WORK = re.compile(r"^train/|_per_second$|seconds|memory|^rl/|(^|/)coordinates/")
_LONGEST = 160  # characters of a setting


@dataclass(frozen=True)
class Data:
    """Records that a run learnt from or was evaluated on."""

    name: str
    files: str
    images: int
    questions: int


@dataclass(frozen=True)
class _Section:
    """A heading with lines, a table of two or more columns where `head` has any, and set text."""

    title: str
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    text: str = ""


def write_card(
    workdir: Path,
    config: ExperimentConfig,
    *,
    recipe: str | None,
    data: Sequence[Data],
    datasets: Sequence[str],
    languages: Sequence[str],
    parameters: str,
) -> list[Path]:
    """Writes both files of a run that has ended.

    Args:
        workdir: has run.json and metrics.jsonl.
        recipe: FILE[:VARIANT] that the configuration is a changed copy of; None: not known.
        data: what the run read, for training first.
        datasets, languages: of its records.
        parameters: `clu.parameter_overview` of those that were trained.

    Returns:
        The files written; a card that somebody has edited is not.

    Raises:
        UserError: the run's own files cannot be read, or the workdir not be written.
    """
    run = read_json_object(workdir / RUN_FILE)
    figures = [line for _, line in read_json_lines(workdir / FILE_NAME, "the run's figures", "")]
    last = _evaluated(figures)
    sections = [
        _base(config, run),
        _data(workdir, data),
        _settings(config, recipe),
        _figures(config, figures, last),
        _Section("Trained parameters", text=parameters),
        _hardware(run, figures),
        _terms(config, datasets),
        _again(run, recipe, workdir),
    ]
    name = workdir.resolve().name
    about = _about(config, data)
    header = _header(name, last, data, languages)
    written = []
    with storage_errors(f"{workdir}: the run's card"):
        markdown = workdir / MARKDOWN
        if not markdown.exists() or _OURS in read_text(markdown):
            replace_text(markdown, f"{header}\n# {name}\n\n{about}\n\n{_markdown(sections)}")
            written.append(markdown)
        html = template(str(__package__), "run_card.html.j2").render(
            name=name,
            about=about,
            sections=sections,
            style=Markup(read_packaged(str(__package__), "page.css")),
        )
        replace_text(workdir / HTML, html)
        written.append(workdir / HTML)
    return written


def _about(config: ExperimentConfig, data: Sequence[Data]) -> str:
    kind = "adapted by LoRA" if config.lora.rank else "trained"
    return (
        f"{config.model.preset}, {kind} by cxrjax on {data[0].images:,} radiographs and "
        f"{data[0].questions:,} questions about them. Research software, not a medical device: "
        "what it answers is no diagnosis, and nobody has tried it on patients."
    )


def _base(config: ExperimentConfig, run: Mapping[str, Any]) -> _Section:
    base, counts = run.get("base", {}), run.get("parameters", {})
    rows = [
        ["architecture", config.model.preset],
        ["weights it began with", config.model.init_from or "none: random ones"],
        ["their SHA-256", str(base.get("sha256", "unknown"))],
    ]
    if counts:
        rows.append(["parameters", f"{counts['trainable']:,} trained of {counts['total']:,}"])
    if config.lora.rank:
        rows.append(["LoRA", f"rank {config.lora.rank}, alpha {config.lora.alpha:g}"])
    return _Section("Base", head=("what", "which"), rows=rows)


def _data(workdir: Path, data: Sequence[Data]) -> _Section:
    rows = [[d.name, d.files, f"{d.images:,}", f"{d.questions:,}"] for d in data]
    quality = workdir / QUALITY_FILE
    aside = read_json_object(quality).get("total") if quality.is_file() else None
    lines = [f"{aside:,} records were rejected, by reason in {QUALITY_FILE}."] if aside else []
    return _Section("Data", lines, ("for", "records", "images", "questions"), rows)


def _settings(config: ExperimentConfig, recipe: str | None) -> _Section:
    """Settings that the recipe does not have, else those that differ from the defaults."""
    there, whose = ExperimentConfig(), "the defaults"
    if recipe is not None:
        with contextlib.suppress(UserError):  # a recipe that is none without its overrides
            there, whose = load_config(recipe), f"the recipe, {recipe}"
    before, now = flatten(there.to_json()), flatten(config.to_json())
    rows = [
        [key, _shown(before.get(key)), _shown(value)]
        for key, value in sorted(now.items())
        if value != before.get(key) and key != "missing_data_help"
    ]
    lines = [f"Where the run differs from {whose}; all settings are in config.json."]
    if not rows:
        return _Section("Settings", [f"Those of {whose}; all of them are in config.json."])
    return _Section("Settings", lines, ("key", "there", "in this run"), rows)


def _figures(
    config: ExperimentConfig,
    figures: Sequence[Mapping[str, Any]],
    last: tuple[int, dict[str, float]],
) -> _Section:
    losses = [f["train/loss"] for f in figures if f.get("train/loss") is not None]
    lines = []
    if figures:
        lines.append(f"{figures[-1]['step']:,} steps of {config.batch_images} images.")
    if len(losses) > 1:
        lines.append(f"Training loss: {losses[0]:.4g} at first, {losses[-1]:.4g} at last.")
    elif losses:
        lines.append(f"Training loss: {losses[0]:.4g}.")
    step, values = last
    if not values:
        lines.append("No validation records were given: nothing says how good the model is.")
        return _Section("Figures", lines)
    metric = config.training.best_metric
    found = [(f["step"], f[metric]) for f in figures if metric and f.get(metric) is not None]
    if found:
        at = "; ".join(f"step {at:,}: {value:.4g}" for at, value in found[-10:])
        lines.append(f"The best checkpoint is chosen by {metric}: {at}.")
    lines.append(f"On the validation records, after step {step:,}, without intervals:")
    rows = [[name, f"{value:.4g}"] for name, value in sorted(values.items())]
    return _Section("Figures", lines, ("figure", "value"), rows)


def _evaluated(figures: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """The last step with figures of an evaluation, and those."""
    for one in reversed(figures):
        values = {
            name: value
            for name, value in one.items()
            if name != "step" and value is not None and not _OF_THE_WORK.search(name)
        }
        if values:
            return one["step"], values
    return 0, {}


def _hardware(run: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> _Section:
    devices = run.get("devices", {})
    rows = [["devices", f"{devices.get('count')} of {devices.get('kind')}"]]
    if devices.get("processes", 1) > 1:
        rows.append(["processes", str(devices["processes"])])
    for name, what, unit in (
        ("train/step_seconds", "seconds a step, in the middle", ""),
        ("train/host_peak_memory_gb", "most memory of a process", " GB"),
    ):
        values = sorted(f[name] for f in figures if f.get(name) is not None)
        if values:
            value = values[len(values) // 2] if "seconds" in name else values[-1]
            rows.append([what, f"{value:.3g}{unit}"])
    rows += [[name, version] for name, version in run.get("versions", {}).items()]
    return _Section("Hardware and software", head=("what", "which"), rows=rows)


def _terms(config: ExperimentConfig, datasets: Sequence[str]) -> _Section:
    lines = [
        f"Data: {terms.title}: {terms.licence}; {terms.terms}."
        + " Not to be passed on; ask before you pass on what was trained from it."
        * terms.credentialed
        for terms in data_terms(datasets).values()
    ]
    base = _licence(config.model.preset) or "those of the weights that it began with"
    lines.append(f"Base: its terms hold for what is trained from it: {base}.")
    lines.append("Code: Apache 2.0, cxrjax.")
    return _Section("Terms", lines)


def _licence(preset: str) -> str | None:
    """Terms of the published models whose name, without signs, begins the preset's."""
    told = {
        re.sub(r"\W", "", name.partition("/")[2]).lower(): terms
        for name, terms in family_tables("licence").items()
    }
    begun = [name for name in told if preset.replace("_", "").startswith(name)]
    return told[max(begun, key=len)] if begun else None


def _again(run: Mapping[str, Any], recipe: str | None, workdir: Path) -> _Section:
    lines = [
        f"Answers: `python -m cxrjax.predict --workdir={workdir} --questions=FILE --out=FILE`",
        f"Adapter for PEFT: `python -m cxrjax.convert --checkpoint={workdir} --to=peft --out=DIR`",
        f"Seed {run.get('seed')}, commit {run.get('git_commit')}; run.json has hashes of the data.",
    ]
    if recipe is not None:
        lines.insert(0, f"Trained by `python -m cxrjax.train --config={recipe} ...`")
    return _Section("Use", lines)


def _header(
    name: str,
    last: tuple[int, dict[str, float]],
    data: Sequence[Data],
    languages: Sequence[str],
) -> str:
    """The YAML of a model card; JSON is YAML too."""
    content: dict[str, Any] = {
        "library_name": "cxrjax",
        "pipeline_tag": "image-text-to-text",
        "license": "other",
        "license_name": "that-of-data-and-base",
        "language": list(languages),
        "tags": ["chest-x-ray", "radiology", "visual-question-answering", "visual-grounding"],
    }
    values = last[1]
    if values:
        kind = "visual-question-answering"
        metrics = [{"type": n, "name": n, "value": v} for n, v in sorted(values.items())]
        result = {
            "task": {"type": kind},
            "dataset": {"name": data[-1].name, "type": "own", "split": "validation"},
            "metrics": metrics,
        }
        content["model-index"] = [{"name": name, "results": [result]}]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    return "\n".join(["---", _OURS, *lines, "---", ""])


def _markdown(sections: Sequence[_Section]) -> str:
    return "\n".join(line for section in sections for line in _lines(section))


def _lines(section: _Section) -> Iterator[str]:
    yield from (f"## {section.title}", "")
    for line in section.lines:
        yield from (line, "")
    if section.head:
        for row in (section.head, ["---"] * len(section.head), *section.rows):
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        yield ""
    if section.text:
        yield from ("```", section.text, "```", "")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
