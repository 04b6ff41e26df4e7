"""`python -m cxrjax.score`: its files, its tables, its exit codes."""

import csv
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from cxrjax.cli import run
from cxrjax.commands.score import main
from cxrjax.errors import UserError
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import benchmark_places, load_part
from cxrjax.records import write_records
from tests.evaluation import made
from tests.evaluation.made import flags_of

CASES = made.cases_of(__file__)

PROTOCOLS = {"paper", "strict"}
CELL = {"value", "ci_low", "ci_high", "n"}
# Metric names that others rely on (the contract), under both protocols.
CONTRACT = {
    *(f"vqa/{name}" for name in ("accuracy", "precision", "recall", "f1")),
    *(f"detection/{name}@0.3" for name in ("precision", "recall", "f1", "miou_tp")),
    *(f"localization/{name}" for name in ("good@0.5", "acceptable@0.3", "mean_iou")),
    "parse_failure_rate",
}


@pytest.fixture
def files(tmp_path):
    """Eleven images with one question each; `base` is right on some, `tuned` on all."""
    records, base, tuned = [], [], []
    for i in range(11):
        there = i % 3 != 0
        text = "Yes, ILD at <loc_20_10_100_50>." if there else "No, there is no ILD."
        boxes = [made.BOX] if there else []
        records.append(made.record_of(f"i{i}", boxes=boxes, answer={"text": text}))
        tuned.append(made.line_of(records[-1], text, [made.FRACTIONS] if there else []))
        base.append(made.line_of(records[-1], "Yes.", [[0.1, 0.1, 0.5, 0.4]]))
    write_records(tmp_path / "records.jsonl", records)
    made.write_lines(tmp_path / "base.jsonl", base)
    made.write_lines(tmp_path / "tuned.jsonl", tuned)
    return tmp_path


def _read(folder, name, out="out"):
    return made.read_json(folder, out, f"{name}.json")


def _table(folder):
    with open(folder / "out" / "tables.csv", newline="") as lines:
        return list(csv.DictReader(lines))


def test_metrics_have_the_contracts_shape(files, capsys):
    main(flags_of(files, "base", "tuned"))
    metrics = _read(files, "metrics")
    assert list(metrics) == ["base", "tuned"]
    for protocols in metrics.values():
        assert set(protocols) == PROTOCOLS
        for named in protocols.values():
            assert named.keys() >= CONTRACT
            assert all(set(cell) == CELL for cell in named.values())
        assert protocols["strict"].keys() >= {"vqa/balanced_accuracy", "detection_agnostic/f1@0.3"}
    assert metrics["tuned"]["strict"]["detection/f1@0.3"]["value"] == 1
    assert metrics["tuned"]["paper"]["vqa/accuracy"]["value"] is None
    assert metrics["base"]["strict"]["vqa/balanced_accuracy"]["value"] == 0.5
    assert metrics["base"]["strict"]["detection/precision@0.3"]["value"] == pytest.approx(7 / 11)
    printed = capsys.readouterr().out
    assert "Ground truth: `exact`" in printed
    assert "Recall ceiling" in printed
    assert "missing_prediction" in printed


def test_what_the_figures_stand_on_is_written_beside_them(files):
    (files / "base.jsonl").write_text((files / "base.jsonl").read_text().split("\n", 1)[1])
    main(flags_of(files, "base", seed=3, resamples=5))
    settings = _read(files, "score")
    assert settings["gt_mode"] == "exact"
    assert settings["bootstrap"]["seed"] == 3
    assert settings["bootstrap"]["resamples"] == 5
    assert settings["bootstrap"]["clustered_by"] == ["image"]
    digest = hashlib.sha256((files / "records.jsonl").read_bytes()).hexdigest()
    assert settings["references"] == {"name": "records.jsonl", "sha256": digest}
    assert settings["problems"]["base"]["missing_prediction"] == 1


def test_keys_and_images_that_are_not_what_they_should_be_are_named(files, capsys):
    lines = (files / "base.jsonl").read_text().splitlines()
    lines[0] = lines[0].replace('"text"', '"image_id": "i7.png", "Text": "No.", "text"')
    lines[1] = lines[1].replace('"text"', '"text": "No.", "text"')
    lines[2] = lines[2].replace('"text"', '"image_id": "i2", "text"')
    (files / "base.jsonl").write_text("\n".join(lines))
    main(flags_of(files, "base", "tuned"))
    settings = _read(files, "score")
    expected = {"contradicted_image": 1, "misspelt_key": 1, "repeated_key": 1}
    for system, factor in (("base", 1), ("tuned", 0)):
        found = settings["problems"][system]
        assert {name: found[name] for name in expected} == {n: factor for n in expected}
    printed = capsys.readouterr().out
    for name, value in zip(expected, ("i7.png", "Text", "text"), strict=True):
        assert f"base: {name}: '{value}' (1)" in printed
    assert not any(f"tuned: {name}" in printed for name in expected)


def test_the_same_files_give_the_same_bytes(files):
    for out in ("out", "again"):
        main(flags_of(files, "base", "tuned", out=out, resamples=5))
    tables = ("tables.md", "tables.tex", "tables.csv")
    for name in ("metrics.json", "score.json", "comparisons.json", *tables):
        assert (files / "out" / name).read_bytes() == (files / "again" / name).read_bytes()


def test_tables_have_the_papers_layout_and_values(files):
    main(flags_of(files, "base", "tuned"))
    text = (files / "out" / "tables.md").read_text()
    for line in (
        "| Model | Protocol | Acc. | Prec. | Recall | F1 | Parse failures |",
        "| Pretrained (the paper) | as printed | 0.558 [1] | 0.421 | 0.827 | 0.558 |  |",
        "| Fine-tuned (the paper) | as printed | 0.624 [1] | 0.471 | 0.926 | 0.624 |  |",
        "| Model | Protocol | Prec. | Recall | F1 | mIoU (TP) | Parse failures |",
        "| Pretrained (the paper) | as printed | 0.096 | 0.068 | 0.070 [1] | 0.036 [2] |  |",
        "| Fine-tuned (the paper) | as printed | 0.120 | 0.090 | 0.103 | 0.615 |  |",
    ):
        assert line in text
    # Table 6 has models as columns.
    table6 = text.split("## Table 6")[1].splitlines()
    assert any(line.startswith("| IoU>0.5 (%) | 1.1 | 22.8 |") for line in table6)
    assert any(line.startswith("| IoU>0.3 (%) | 8.5 | 48.6 |") for line in table6)
    assert any(line.startswith("| Mean IoU (all preds) | 0.036 | 0.133 |") for line in table6)
    # Synthetic images are not the paper's.
    assert "are no reproduction" in text and "| difference |" not in text
    for table in text.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, table


def test_csv_sets_the_papers_value_beside_ours(files):
    records = files / "records.jsonl"
    records.write_text(records.read_text().replace('"synthetic"', '"vindr_cxr_vqa"'))
    main(flags_of(files, "base", "tuned"))
    key = {(r["table"], r["system"], r["protocol"], r["column"]): r for r in _table(files)}
    f1 = key["table_5", "base", "paper", "F1"]
    assert (f1["paper_row"], f1["paper"]) == ("Pretrained", "0.07")
    assert float(f1["difference"]) == pytest.approx(float(f1["ours"]) - 0.070)
    assert "give 0.080" in f1["note"]
    assert "cannot be a mean" in key["table_5", "base", "paper", "mIoU (TP)"]["note"]
    assert key["table_5", "tuned", "paper", "mIoU (TP)"]["note"] == ""
    for system in ("base", "tuned"):
        accuracy = key["table_4", system, "paper", "Acc."]
        assert accuracy["metric"] == "vqa/accuracy_as_printed"
        assert "equals its F1" in accuracy["note"]
    good = key["table_6", "tuned", "paper", "IoU>0.5 (%)"]
    assert (good["unit"], good["paper"]) == ("%", "22.8")
    assert float(good["ours"]) == pytest.approx(100 * 7 / 11)
    # Another definition than the paper's has no difference to it.
    assert key["table_5", "tuned", "strict", "F1"]["difference"] == ""
    assert key["by_class_detection", "tuned", "strict", "ILD"]["ours"] != ""
    assert key["by_class_detection", "tuned", "strict", "ILD"]["small"] == "true"  # 7 images
    assert f1["small"] == "false"


def test_systems_are_compared_with_the_first_or_the_one_named(files, capsys):
    main(flags_of(files, "base", "tuned", resamples=50))
    assert "| tuned − base | strict | `detection/f1@0.3` | +" in capsys.readouterr().out
    rows = _read(files, "comparisons")
    key = {(row["protocol"], row["metric"]): row for row in rows}
    assert {(row["system"], row["compared_to"]) for row in rows} == {("tuned", "base")}
    metrics = _read(files, "metrics")
    for (protocol, metric), row in key.items():
        one, two = (metrics[name][protocol][metric]["value"] for name in ("tuned", "base"))
        expected = None if one is None or two is None else one - two
        assert row["difference"] == (expected if expected is None else pytest.approx(expected))
        assert row["n"] == metrics["tuned"][protocol][metric]["n"]
    # Every image that has the class is found by both; `base` finds it on the others as well.
    good = key["strict", "vqa/precision"]
    assert good["difference"] == pytest.approx(1 - 7 / 11)
    assert 0 < good["ci_low"] < good["difference"] < good["ci_high"] < 1
    assert good["p"] <= good["p_holm"] <= 1
    assert key["strict", "vqa/recall"]["p"] == 1
    # Ranked figures too; not those of the breakdowns, nor a column that repeats another.
    ranked = {"ap/coco", "ap/voc@0.4", "froc/mean_sensitivity"}
    assert ranked | {"vqa/balanced_accuracy", "vqa/specificity"} <= {m for _, m in key}
    assert not any(metric.startswith("by_") or "as_printed" in metric for _, metric in key)
    assert all(key["strict", metric]["p_holm"] is not None for metric in ranked)

    main(flags_of(files, "base", "tuned", compare_to="tuned", resamples=50))
    turned = _read(files, "comparisons")
    assert {(row["system"], row["compared_to"]) for row in turned} == {("base", "tuned")}
    assert [row["p"] for row in turned] == [row["p"] for row in rows]

    main(flags_of(files, "tuned"))
    assert not (files / "out" / "comparisons.json").exists()  # nothing is left of another run
    assert "Systems compared" not in (files / "out" / "tables.md").read_text()


def test_how_intervals_were_made_is_said(files):
    main(flags_of(files, "base", resamples=20))
    bootstrap = _read(files, "score")["bootstrap"]
    assert bootstrap["method"] == "bca"
    assert "(bca bootstrap" in (files / "out" / "tables.md").read_text()
    fallbacks = bootstrap["percentile_instead"]["base"]["strict"]
    assert set(fallbacks) <= _read(files, "metrics")["base"]["strict"].keys()
    main(flags_of(files, "base", interval="percentile", resamples=20))
    bootstrap = _read(files, "score")["bootstrap"]
    assert (bootstrap["method"], bootstrap["percentile_instead"]) == ("percentile", {})


def test_latex_has_the_tables_of_the_markdown(files):
    names = ["--name=a_b", "--name=c&d|e"]
    main([*flags_of(files, "base", "tuned", resamples=5), *names])
    markdown = (files / "out" / "tables.md").read_text()
    latex = (files / "out" / "tables.tex").read_text()
    assert r"\subsection*{Table 5. Bounding box detection (IoU \textgreater{} 0.3)}" in latex
    assert r"a\_b & paper & " in latex
    assert r"c\&d|e & strict & " in latex
    tables = latex.split(r"\begin{longtable}")[1:]
    assert len(tables) == len(re.findall(r"^\|---", markdown, re.MULTILINE))
    for table in tables:
        width = len(table[1 : table.index("}")])
        rows = [line for line in table.split(r"\end{longtable}")[0].splitlines() if "&" in line]
        assert rows
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == width - 1, row
            assert row.endswith(r" \\")
    # Cells of fewer than ten stand grey; 7 images have the class.
    assert re.search(r"\\textcolor\{gray\}\{1\.000 \(.*\); n = 7\}", latex)
    for line in latex.splitlines():
        bare = re.sub(r"\\.", "", line)
        assert bare.count("{") == bare.count("}"), line


def test_names_and_text_alone(files):
    lines = made.read_lines(files / "tuned.jsonl")
    for line in lines:
        del line["boxes"]
    made.write_lines(files / "theirs.jsonl", lines)
    main([*flags_of(files, "tuned", "theirs", codec="vindr_px"), "--name=a", "--name=b|c"])
    metrics = _read(files, "metrics")
    assert list(metrics) == ["a", "b|c"]
    name = "detection/f1@0.3"
    assert metrics["b|c"]["strict"][name]["value"] == metrics["a"]["strict"][name]["value"] == 1
    assert r"| b\|c | strict |" in (files / "out" / "tables.md").read_text()


def _exit(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        run(lambda: main(arguments))
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["</script><b>", "[x](javascript:alert)", "../up", "a/../../b", "/etc/x", "a\u202eb", "a\nb"],
)
def test_a_name_that_would_break_a_page_or_a_path_is_refused(files, capsys, name):
    code, said = _exit(capsys, [*flags_of(files, "base"), f"--name={name}"])
    assert code == 2 and said.count("\n") == 1 and "choose another --name" in said
    assert not (files / "out").exists()


def test_what_a_spreadsheet_would_compute_is_text(files):
    names = ['=HYPERLINK("http://x")', "+1+1", "-a", "@a", "a/b"]
    main([*flags_of(files, *["base"] * 5), *(f"--name={name}" for name in names)])
    rows = _table(files)
    assert {row["system"] for row in rows} >= {*(f"'{name}" for name in names[:4]), "a/b"}
    cells = [cell for row in rows for cell in row.values() if cell[:1] in tuple("=+-@")]
    assert all(cell == cell.strip() and float(cell) <= 0 for cell in cells)


@pytest.mark.parametrize(("change", "says"), CASES["unusable"])
def test_user_errors_are_one_line_and_code_two(files, capsys, change, says):
    systems = ["base"] if "none.jsonl" in change[0] else ["base", "tuned"]
    code, error = _exit(capsys, [*flags_of(files, *systems), *change])
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def test_questions_given_as_references_are_refused(files, capsys):
    lines = made.read_lines(files / "records.jsonl")
    for line in lines:
        del line["answers"]
    made.write_lines(files / "records.jsonl", lines)
    code, error = _exit(capsys, flags_of(files, "base"))
    assert (code, "has no answers" in error) == (2, True)


@pytest.mark.parametrize(
    "change", [["--benchmark=none"], ["--codec=none"], ["--resamples=-1"], ["--unknown=1"]]
)
def test_unusable_flags_are_code_two(files, capsys, change):
    assert _exit(capsys, [*flags_of(files, "base"), *change])[0] == 2


def test_help_explains(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "metrics.json" in printed
    assert "--codec" in printed


def test_as_a_command(files):
    command = [sys.executable, "-m", "cxrjax.score", *flags_of(files, "tuned")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (files / "out" / "tables.csv").exists()


def test_runs_with_other_seeds_give_a_spread(files, capsys):
    for seed, source in enumerate(("base", "tuned", "tuned")):
        (files / f"m.seed{seed}.jsonl").write_text((files / f"{source}.jsonl").read_text())
    main(flags_of(files, "m.seed0", "m.seed1", "m.seed2"))
    found = _read(files, "spread")["m"]["strict"]["vqa/f1"]
    figures = _read(files, "metrics")
    values = [figures[f"m.seed{seed}"]["strict"]["vqa/f1"]["value"] for seed in range(3)]
    assert found["low"] == min(values) < found["mean"] < found["high"] == max(values)
    assert "### m: spread over seeds" in capsys.readouterr().out


def test_figures_go_to_event_files_where_asked(files):
    folder = files / "events"
    main(flags_of(files, "base", "tuned", summaries=folder, step=7))
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    metrics = _read(files, "metrics")
    for system, protocol, metric in (
        ("base", "strict", "vqa/balanced_accuracy"),
        ("tuned", "strict", "localization/mean_iou"),
        ("base", "paper", "vqa/f1"),
    ):
        (event,) = accumulator.Tensors(f"score/{system}/{protocol}/{metric}")
        written = float(make_ndarray(event.tensor_proto))
        assert event.step == 7
        assert written == pytest.approx(metrics[system][protocol][metric]["value"])


@pytest.mark.parametrize("name", sorted({*benchmark_places()} - {"vindr_cxr_vqa", "own"}))
def test_only_vindrs_modes_have_arguments(name):
    benchmark = load_part(benchmark_places()[name])
    options = ScoreOptions(gt_mode=f"{benchmark.gt_modes[0]}:x", bootstrap=Bootstrap(resamples=0))
    with pytest.raises(UserError, match=r"^--gt_mode=\w+:x: expected"):
        benchmark.score_files(Path("no.jsonl"), {}, options)
