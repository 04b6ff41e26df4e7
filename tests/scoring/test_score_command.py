"""`python -m cxrjax.score`: its files, its tables, its exit codes."""

import csv
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.papers.benchmarks import BENCHMARKS, DATA_VALIDATIONS
from cxrjax.records import QARecord, write_records
from cxrjax.score import main
from cxrjax.scoring.scores import ScoreOptions

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
        box = [20.0, 10.0, 100.0, 50.0]
        text = "Yes, ILD at <loc_20_10_100_50>." if there else "No, there is no ILD."
        records.append(
            QARecord.model_validate(
                {
                    "dataset": "synthetic",
                    "split": "validation",
                    "image_id": f"i{i}",
                    "image_path": f"i{i}.png",
                    "image_hw": (100, 200),
                    "question_id": f"q{i}",
                    "question": "Is there ILD?",
                    "question_type": "Is_there",
                    "variables": {"finding": "ILD"},
                    "answers": [
                        {
                            "text": text,
                            "labels": ["ILD"],
                            "polarity": "pos" if there else "neg",
                            "boxes_by_image": {f"i{i}": [box]} if there else {},
                        }
                    ],
                    "negative_kind": None if there else "absent_class",
                }
            )
        )
        fractions = [[0.1, 0.1, 0.5, 0.5]] if there else []
        tuned.append({"question_id": f"q{i}", "text": text, "boxes": fractions})
        base.append({"question_id": f"q{i}", "text": "Yes.", "boxes": [[0.1, 0.1, 0.5, 0.4]]})
    write_records(tmp_path / "validation.jsonl", records)
    for name, lines in (("base", base), ("tuned", tuned)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def _arguments(folder, *names, out="out", **flags):
    return [
        "--benchmark=vindr_cxr_vqa",
        f"--references={folder / 'validation.jsonl'}",
        *(f"--predictions={folder / name}.jsonl" for name in names),
        f"--out={folder / out}",
        "--resamples=50",
        "--floors=never",
        *(f"--{key}={value}" for key, value in flags.items()),
    ]


def _metrics(folder, out="out"):
    return json.loads((folder / out / "metrics.json").read_text())


def test_metrics_have_the_contracts_shape(files, capsys):
    main(_arguments(files, "base", "tuned"))
    metrics = _metrics(files)
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
    main(_arguments(files, "base", seed=3))
    settings = json.loads((files / "out" / "score.json").read_text())
    assert settings["gt_mode"] == "exact"
    assert settings["bootstrap"]["seed"] == 3
    assert settings["bootstrap"]["resamples"] == 50
    assert settings["bootstrap"]["clustered_by"] == ["image"]
    digest = hashlib.sha256((files / "validation.jsonl").read_bytes()).hexdigest()
    assert settings["references"] == {"name": "validation.jsonl", "sha256": digest}
    assert settings["problems"]["base"]["missing_prediction"] == 1


def test_keys_and_images_that_are_not_what_they_should_be_are_named(files, capsys):
    lines = (files / "base.jsonl").read_text().splitlines()
    lines[0] = lines[0].replace('"text"', '"image_id": "i7.png", "Text": "No.", "text"')
    lines[1] = lines[1].replace('"text"', '"text": "No.", "text"')
    lines[2] = lines[2].replace('"text"', '"image_id": "i2", "text"')
    (files / "base.jsonl").write_text("\n".join(lines))
    main(_arguments(files, "base", "tuned"))
    settings = json.loads((files / "out" / "score.json").read_text())
    expected = {"contradicted_image": 1, "misspelt_key": 1, "repeated_key": 1}
    for system, factor in (("base", 1), ("tuned", 0)):
        found = settings["problems"][system]
        assert {name: found[name] for name in expected} == {n: factor for n in expected}
    printed = capsys.readouterr().out
    for named in (
        "base: contradicted_image: 'i7.png' (1)",
        "base: misspelt_key: 'Text' (1)",
        "base: repeated_key: 'text' (1)",
    ):
        assert named in printed
    assert not any(f"tuned: {name}" in printed for name in expected)


def test_the_same_files_give_the_same_bytes(files):
    for out in ("out", "again"):
        main(_arguments(files, "base", "tuned", out=out))
    for name in (
        "metrics.json",
        "tables.md",
        "tables.tex",
        "tables.csv",
        "score.json",
        "comparisons.json",
    ):
        assert (files / "out" / name).read_bytes() == (files / "again" / name).read_bytes()


def test_tables_have_the_papers_layout_and_values(files):
    main(_arguments(files, "base", "tuned"))
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
    records = files / "validation.jsonl"
    records.write_text(records.read_text().replace('"synthetic"', '"vindr_cxr_vqa"'))
    main(_arguments(files, "base", "tuned"))
    with open(files / "out" / "tables.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    key = {(r["table"], r["system"], r["protocol"], r["column"]): r for r in rows}
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
    main(_arguments(files, "base", "tuned"))
    assert "| tuned − base | strict | `detection/f1@0.3` | +" in capsys.readouterr().out
    rows = json.loads((files / "out" / "comparisons.json").read_text())
    key = {(row["protocol"], row["metric"]): row for row in rows}
    assert {(row["system"], row["compared_to"]) for row in rows} == {("tuned", "base")}
    metrics = _metrics(files)
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

    main(_arguments(files, "base", "tuned", compare_to="tuned"))
    turned = json.loads((files / "out" / "comparisons.json").read_text())
    assert {(row["system"], row["compared_to"]) for row in turned} == {("base", "tuned")}
    assert [row["p"] for row in turned] == [row["p"] for row in rows]

    main(_arguments(files, "tuned"))
    assert not (files / "out" / "comparisons.json").exists()  # nothing is left of another run
    assert "Systems compared" not in (files / "out" / "tables.md").read_text()


def test_how_intervals_were_made_is_said(files):
    main(_arguments(files, "base"))
    bootstrap = json.loads((files / "out" / "score.json").read_text())["bootstrap"]
    assert bootstrap["method"] == "bca"
    assert "(bca bootstrap" in (files / "out" / "tables.md").read_text()
    fallbacks = bootstrap["percentile_instead"]["base"]["strict"]
    assert set(fallbacks) <= _metrics(files)["base"]["strict"].keys()
    main(_arguments(files, "base", interval="percentile"))
    bootstrap = json.loads((files / "out" / "score.json").read_text())["bootstrap"]
    assert (bootstrap["method"], bootstrap["percentile_instead"]) == ("percentile", {})


def test_latex_has_the_tables_of_the_markdown(files):
    main([*_arguments(files, "base", "tuned"), "--name=a_b", "--name=c&d|e"])
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
    lines = [json.loads(line) for line in (files / "tuned.jsonl").read_text().splitlines()]
    for line in lines:
        del line["boxes"]
    (files / "theirs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    main([*_arguments(files, "tuned", "theirs", codec="vindr_px"), "--name=a", "--name=b|c"])
    metrics = _metrics(files)
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
    code, said = _exit(capsys, [*_arguments(files, "base"), f"--name={name}"])
    assert code == 2 and said.count("\n") == 1 and "choose another --name" in said
    assert not (files / "out").exists()


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1+1", "-a", "@a", "a/b"])
def test_what_a_spreadsheet_would_compute_is_text(files, name):
    main([*_arguments(files, "base"), f"--name={name}"])
    with open(files / "out" / "tables.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["system"] for row in rows} >= {name if name == "a/b" else f"'{name}"}
    cells = [cell for row in rows for cell in row.values() if cell[:1] in tuple("=+-@")]
    assert all(cell == cell.strip() and float(cell) <= 0 for cell in cells)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--references=none.jsonl"], "none.jsonl: cannot read records"),
        (["--predictions=none.jsonl"], "none.jsonl: cannot read predictions"),
        (["--name=one"], "1 --name for 2 --predictions"),
        (["--name=one", "--name=one"], "a system called 'one' is there already"),
        (["--compare_to=none"], "--compare_to=none: expected one of base, tuned"),
        (["--gt_mode=median"], "--gt_mode=median: expected 'by_protocol', 'exact', 'per_reader'"),
        (["--gt_mode=wbf:2"], "'2' does not fit; expected an IoU between 0 and 1"),
        (["--gt_mode=raw"], "image has no readers"),
        (["--out=/proc/none"], "/proc/none: cannot write"),
    ],
)
def test_user_errors_are_one_line_and_code_two(files, capsys, change, says):
    arguments = (
        _arguments(files, "base")
        if "none.jsonl" in change[0]
        else _arguments(files, "base", "tuned")
    )
    code, error = _exit(capsys, [*arguments, *change])
    assert code == 2
    assert says in error
    assert error.count("\n") == 1


def test_questions_given_as_references_are_refused(files, capsys):
    lines = [json.loads(line) for line in (files / "validation.jsonl").read_text().splitlines()]
    stripped = [{k: v for k, v in line.items() if k != "answers"} for line in lines]
    (files / "validation.jsonl").write_text("\n".join(map(json.dumps, stripped)))
    code, error = _exit(capsys, _arguments(files, "base"))
    assert (code, "has no answers" in error) == (2, True)


@pytest.mark.parametrize(
    "change", [["--benchmark=none"], ["--codec=none"], ["--resamples=-1"], ["--unknown=1"]]
)
def test_unusable_flags_are_code_two(files, capsys, change):
    assert _exit(capsys, [*_arguments(files, "base"), *change])[0] == 2


def test_help_explains(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "metrics.json" in printed
    assert "--codec" in printed


def test_as_a_command(files):
    done = subprocess.run(
        [sys.executable, "-m", "cxrjax.score", *_arguments(files, "tuned")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (files / "out" / "tables.csv").exists()


def test_runs_with_other_seeds_give_a_spread(files, capsys):
    for seed, source in enumerate(("base", "tuned", "tuned")):
        (files / f"m.seed{seed}.jsonl").write_text((files / f"{source}.jsonl").read_text())
    main(_arguments(files, "m.seed0", "m.seed1", "m.seed2"))
    found = json.loads((files / "out" / "spread.json").read_text())["m"]["strict"]["vqa/f1"]
    figures = json.loads((files / "out" / "metrics.json").read_text())
    values = [figures[f"m.seed{seed}"]["strict"]["vqa/f1"]["value"] for seed in range(3)]
    assert found["low"] == min(values) < found["mean"] < found["high"] == max(values)
    assert "### m: spread over seeds" in capsys.readouterr().out


def test_figures_go_to_event_files_where_asked(files):
    folder = files / "events"
    main(_arguments(files, "base", "tuned", summaries=folder, step=7))
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    metrics = json.loads((files / "out" / "metrics.json").read_text())
    for system, protocol, metric in (
        ("base", "strict", "vqa/balanced_accuracy"),
        ("tuned", "strict", "localization/mean_iou"),
        ("base", "paper", "vqa/f1"),
    ):
        (event,) = accumulator.Tensors(f"score/{system}/{protocol}/{metric}")
        written = float(make_ndarray(event.tensor_proto))
        assert event.step == 7
        assert written == pytest.approx(metrics[system][protocol][metric]["value"])


@pytest.mark.parametrize(
    "name", sorted({*BENCHMARKS, *DATA_VALIDATIONS} - {"vindr_cxr_vqa", "own"})
)
def test_only_vindrs_modes_have_arguments(name):
    benchmark = (BENCHMARKS.get(name) or DATA_VALIDATIONS[name])()
    options = ScoreOptions(gt_mode=f"{benchmark.gt_modes[0]}:x", bootstrap=Bootstrap(resamples=0))
    with pytest.raises(UserError, match=r"^--gt_mode=\w+:x: expected"):
        benchmark.score_files(Path("no.jsonl"), {}, options)
