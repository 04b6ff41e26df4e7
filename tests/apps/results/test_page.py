"""The page says what the files say: its tables, its curves, its words."""

import re
from pathlib import Path

import html5lib
import pytest

from cxrjax.apps.results.curves import chart, system_charts
from cxrjax.apps.viewer import viewer_parts
from cxrjax.errors import UserError
from cxrjax.records import Answer
from tests.apps.rows import ROWS

TABLES = Path(__file__).with_name("tables.md").read_text(encoding="utf-8")
WHO = {"system": "tuned", "compared_to": "base", "protocol": "strict", "n": 300}
FOUND = ("metric", "difference", "ci_low", "ci_high", "p", "p_holm")
COMPARISONS = [
    WHO | dict(zip(FOUND, found, strict=True))
    for found in (
        ("detection/f1@0.3", 0.25, 0.2, 0.3, 0.001, 0.004),
        ("vqa/f1", -0.01, -0.05, 0.03, 0.6, 1.0),
        ("vqa/mcc", None, None, None, None, None),
    )
]


def _cells(root, key, row):
    (region,) = [r for r in root.all("div", "scroll") if r.attributes.get("aria-labelledby") == key]
    (found,) = [r for r in region.all("tr") if next(r.all("th")).text == row]
    return list(found.all("td"))


def _key(root, title):
    (found,) = [n for n in root.all() if n.tag in ("h3", "summary") and n.text == title]
    return found["id"]


def test_the_benchmarks_tables_stand_with_intervals_paper_and_difference(page):
    root = page.read(tables={"": TABLES})
    key = _key(root, "Table 5. Bounding box detection (IoU > 0.3)")
    protocol, precision, f1 = _cells(root, key, "tuned")
    assert protocol.text == "paper" and next(precision.all("b")).text == "0.812"
    assert next(precision.all("small")).text == "0.790 to 0.834"
    assert next(f1.all("span", "none")).text == "–"
    printed = _cells(root, key, "Pretrained (the paper)")
    assert next(printed[2].all("sup")).text == "1"
    rows = {next(r.all("th")).text: r.classes for r in root.all("tr") if list(r.all("th"))}
    assert rows["Pretrained (the paper)"] == ["printed"]
    assert rows["tuned − Fine-tuned"] == ["difference"] and rows["tuned"] == []
    assert [note.text for note in root.all("li")] == ["The paper prints 0.070; 0.080 it is."]
    assert "300 images" in root.text and "Systems compared" not in root.text
    # One with models as columns marks its columns.
    printed, ours, difference = _cells(root, _key(root, "Table 6. Localization"), "IoU>0.5 (%)")
    assert printed.classes == ["num", "printed"] and difference.classes == ["num", "difference"]
    assert ours.classes == ["num"] and next(ours.all("b")).text == "57.7"


def test_breakdowns_are_grouped_by_metric_and_small_cells_are_grey(page):
    root = page.read(tables={"": TABLES}, notes={"classes_seen_by_base": ["Nodule/Mass"]})
    key = _key(root, "Boxes by class (strict)")
    (region,) = [r for r in root.all("div", "scroll") if r.attributes.get("aria-labelledby") == key]
    groups = {th.text: th["colspan"] for th in region.all("th", "group")}
    assert groups == {"F1": "2", "Recall": "2"}
    assert [th.text for th in region.all("th", scope="col")] == ["", *["base", "tuned"] * 2]
    seen = _cells(root, key, "Nodule/Mass seen by base")
    assert [small.text for small in seen[1].all("small")] == ["0.394 to 0.434", "n = 55"]
    assert not any("few" in cell.classes for cell in seen)
    assert all("few" in cell.classes for cell in _cells(root, key, "Atelectasis"))


def test_headlines_show_base_before_tuned_and_tables_every_metric(page):
    (tile,) = [t for t in page.read().all("div", "tile") if "Detection F1" in t.text]
    assert [dt.text.strip() for dt in tile.all("dt")] == ["base", "tuned"]
    figures = [dd.text for dd in tile.all("dd")]
    assert figures == ["0.224", "0.204 to 0.244", "0.666", "0.646 to 0.686"]
    everything = " ".join(table.text for table in page.read().all("table", "dense"))
    for protocols in page.metrics.values():
        for named in protocols.values():
            for metric, entry in named.items():
                assert metric in everything
                assert entry["value"] is None or f"{entry['value']:.3f}" in everything


def _figure(root, protocol, metric):
    (table,) = root.all("table", "dense", data_protocol=protocol)
    (row,) = [r for r in table.all("tr") if next(r.all("th")).text == metric]
    return list(row.all("td"))


def test_undefined_and_unmeasured_are_a_dash_and_zero_is_zero(page):
    page.inputs["metrics"]["tuned"]["strict"]["detection/f1@0.3"]["value"] = float("nan")
    root = page.read()
    base, tuned = _figure(root, "strict", "detection/miou_tp@0.3")
    assert base.text == "–" and "0.693" in tuned.text
    assert base["title"] == "undefined or not measured, n = 300"
    assert [cell.text for cell in _figure(root, "paper", "vqa/accuracy")] == ["–", "–"]
    assert next(_figure(root, "strict", "parse_failure_rate")[1].all("b")).text == "0.000"
    assert _figure(root, "strict", "detection/f1@0.3")[1].text == "–"
    (few,) = [
        c for c in _figure(root, "strict", "by_class/detection/f1@0.3/Atelectasis") if c.text != "–"
    ]
    assert "few" in few.classes, "n = 4 is few"


def test_systems_are_compared_with_intervals_and_corrected_p(page):
    root = page.read(comparisons=COMPARISONS)
    assert "tuned − base, strict protocol" in root.text
    (table,) = [t for t in root.all("table", "figures") if "dense" not in t.classes]
    rows = {next(r.all("th")).text: r for r in table.all("tr")}
    better = rows["detection/f1@0.3"]
    assert "+0.250" in better.text and "+0.200 to +0.300" in better.text
    assert "0.004" in better.text and better.classes == ["significant"]
    assert rows["vqa/f1"].classes == [] and "-0.010" in rows["vqa/f1"].text
    assert next(rows["vqa/mcc"].all("span", "none")).text == "–"
    # The plot reaches 0.3 to each side of the middle, 66: 0.25 is at 116.
    (dot,) = better.all("circle")
    assert float(dot["cx"]) == pytest.approx(66 + 60 * 0.25 / 0.3, abs=0.1)


def test_curves_of_all_systems_share_a_chart(page):
    curve = {"x": [0.1, 0.3, 0.5], "y": [0.8, None, 0.2], "x_label": "IoU", "y_label": "F1"}
    other = curve | {"y": [0.4, 0.4, 0.4]}
    curves = {
        "base": {"sweep/strict/f1": curve, "own": curve},
        "tuned": {"sweep/strict/f1": other, "empty": {"x": [], "y": []}},
    }
    charts = _curves(page.read(curves=curves))
    assert list(charts) == ["sweep/strict/f1", "own"], "a curve without points is not drawn"
    sweep = charts["sweep/strict/f1"]
    assert "IoU" in sweep.text and "F1" in sweep.text and {"base", "tuned"} <= _words(sweep)
    told = next(sweep.all("div", role="img"))["aria-label"]
    assert "tuned: from (0.1, 0.4) to (0.5, 0.4)." in told
    assert _lines(sweep, "#ffd60a") == [], "points with a gap between them are not joined"
    (line,) = _lines(sweep, "#ff4d4f")
    assert len(line) == 3 and len({y for _, y in line}) == 1
    assert [len({x for x, _ in line}), line[0][0] < line[1][0] < line[2][0]] == [3, True]
    assert len(_dots(sweep, "#ffd60a")) == 2 and len(_dots(sweep, "#ff4d4f")) == 3
    assert sweep["data-csv"].splitlines() == [
        "system,IoU,F1",
        *("base,0.1,0.8", "base,0.5,0.2"),
        *("tuned,0.1,0.4", "tuned,0.3,0.4", "tuned,0.5,0.4"),
    ]


def _curves(root) -> dict:
    """The charts by the name of what they show."""
    return {next(one.all("code")).text: one for one in root.all("figure", "curve")}


def _words(chart) -> set[str]:
    return {node.text.strip() for node in chart.all("text")}


def _within(chart, tag, colour):
    """What matplotlib drew within the axes in a colour: no legend, no axis."""
    for group in chart.all("g"):
        for node in group.children:
            if isinstance(node, str) or node.tag != tag or colour not in node["style"]:
                continue
            if {"clip-path"} & (group.attributes.keys() | node.attributes.keys()):
                yield node


def _lines(chart, colour) -> list[list[tuple[float, float]]]:
    """Points of its lines of two points at least."""
    found = []
    for path in _within(chart, "path", colour):
        places = [part.split() for part in path["d"].replace("M", "L").split("L")[1:]]
        found.append([(float(x), float(y)) for x, y in places])
    return [line for line in found if len(line) > 1]


def _dots(chart, colour) -> list[tuple[float, float]]:
    return [(float(use["x"]), float(use["y"])) for use in _within(chart, "use", colour)]


@pytest.mark.parametrize("values", [(1e308, -1e308), (0.0, 0.0), (1e-320, 2e-320), (5.0,)])
def test_any_values_are_drawn(values):
    assert "<path" in chart("Loss", "loss", list(enumerate(values))).svg


@pytest.mark.parametrize(("curves", "message"), ROWS["no_curves"])
def test_curves_of_another_layout_are_refused(page, curves, message):
    with pytest.raises(UserError, match=message):
        page.read(curves=curves)


def test_the_page_is_valid_html_with_the_same_figures_every_time(page):
    notes = {"remarks": ["<b>"], "run": {"a": 1}}
    root = page.read(
        tables={"": TABLES}, comparisons=COMPARISONS, training_log=page.log(), notes=notes
    )
    html5lib.HTMLParser(strict=True).parse(page.html)
    ids = [node["id"] for node in root.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    curve = {"x": [0, 1], "y": [0.2, 0.9], "x_label": "a$b$", "y_label": "_c"}
    first, more = system_charts({"_s$": {"froc": curve, "own": curve}}, {})
    again, _ = system_charts({"_s$": {"froc": curve, "own": curve}}, {})
    assert first == again and "_s$" in first[0].svg and "a$b$" in first[0].svg
    ids = [set(re.findall(r' id="([^"]*)"', one.svg)) for one in (first[0], more[0])]
    assert all(ids) and not ids[0] & ids[1]
    assert not re.search(r"#0[0-9]020[0-9]|matplotlib|<style", first[0].svg)
    assert len(first[0].svg) < 12_000


def test_all_text_is_escaped(page):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"
    answer = {"text": evil, "labels": [evil]}
    given = {"question": evil, "question_type": evil, "variables": {"finding": evil}}
    page.records = [
        page.record(
            i, answers=[Answer(**answer, boxes_by_image={f"image-{i}": [[8, 20, 40, 60]]})], **given
        )
        for i in range(page.images)
    ]
    page.predictions["tuned"] = [page.prediction(i, [], text=evil) for i in range(page.images)]
    page.inputs["metrics"][evil] = {evil: {evil: page.entry(0.5)}}
    curve = {"x": [0, 1], "y": [0, 1], "x_label": evil, "y_label": evil}
    notes = {"remarks": [evil], "missing": [evil], "run": {evil: {evil: evil}}}
    row = f"| {evil} | {evil} |"
    root = page.read(
        title=evil,
        tables={"": f"## {evil}\n\n{row}\n|---|---|\n{row}\n\n{evil}\n"},
        curves={evil: {evil: curve}},
        comparisons=[COMPARISONS[0] | {"metric": evil, "system": evil}],
        notes=notes | {"classes_seen_by_base": [evil]},
    )
    scripts = [node.attributes.get("id") for node in root.all("script")]
    assert scripts == ["case-index", "part-0", *[None] * 4]
    assert not [image for image in root.all("img")]
    assert next(root.all("h1")).text == evil
    assert evil in next(root.all("dl", "run")).text
    cases = page.cases(root)
    assert cases["texts"] == cases["types"] == cases["subjects"] == [evil]
    pieces = cases["cases"][0]["q"][0]["ref"]
    assert "".join(p if isinstance(p, str) else p[0] for p in pieces) == evil


def test_nothing_is_loaded_from_anywhere(page):
    page.inputs["training_log"] = page.log()
    root = page.read(tables={"": TABLES})
    for node in root.all():
        for name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
            value = node.attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), f"{node.tag} {name}={value}"
        assert "url(" not in (node.attributes.get("style") or "")
        assert node.tag not in ("link", "iframe", "object", "embed", "base")
    style = next(root.all("style")).text
    assert "url(" not in style and "@import" not in style
    library = viewer_parts().script.strip()
    assert page.html.count(library) == 1
    for node in root.all("script"):
        # The viewer's library names addresses; the policy keeps it from asking them.
        if "id" not in node.attributes and node.text.strip() != library:
            assert not any(word in node.text for word in ("fetch(", "XMLHttp", "import("))
            assert "http" not in node.text.replace("http://www.w3.org/2000/svg", "")
    (policy,) = [m["content"] for m in root.all("meta") if "http-equiv" in m.attributes]
    assert "default-src 'none'" in policy and "img-src data:" in policy and "http" not in policy


def test_curves_are_drawn(page):
    curves = _curves(page.read(training_log=page.log()))
    names = ["loss", "ce", "giou_loss", "coordinates/swapped", "validation/vqa/f1"]
    assert list(curves) == names
    summary = next(curves["loss"].all("div", role="img"))["aria-label"]
    assert "steps 0 to 99" in summary and "first 3," in summary and "last 2.01," in summary
    validation = curves["validation/vqa/f1"]
    assert validation["data-csv"].splitlines()[1:] == ["0,0.5", "50,0.625", "99,0.7475"]
    assert len(_dots(validation, "--accent")) == 3


def test_health_of_reinforcement_learning_and_the_protocol_that_chooses_are_drawn(page, tmp_path):
    log = tmp_path / "metrics.jsonl"
    figures = ("reward", "reward_iou", "spread", "dead_groups", "kl", "spurious_boxes")
    lines = [
        {"step": step, "train/loss": 0.1, **{f"train/rl/{name}": step / 40 for name in figures}}
        for step in range(1, 40)
    ]
    page.write_lines(log, lines)
    curves = _curves(page.read(training_log=log))
    assert list(curves) == [f"train/rl/{name}" for name in figures]
    names = ("eval/strict/vqa/f1", "eval/paper/vqa/f1", "eval/by_class/vqa/f1/ILD")
    log = page.write_lines(page.root / "log.jsonl", [{"step": 1, **dict.fromkeys(names, 0.5)}])
    assert list(_curves(page.read(training_log=log))) == ["eval/paper/vqa/f1"]


def test_curves_leave_gaps_count_resumed_steps_once_and_show_all_of_their_course(page):
    curves = _curves(page.read(training_log=page.log()))
    lines = _lines(curves["loss"], "--accent")
    assert len(lines) == 2, "the values, and a mean"
    for points in lines:
        xs, ys = zip(*points, strict=True)
        assert xs[0] < 75 and xs[-1] > 300, "from the first step to the last"
        assert list(ys) == sorted(ys) and ys[0] < 40 and ys[-1] > 120, "a falling loss falls"
    lines = [{"step": s, "loss": v} for s, v in ((1, 4.0), (2, float("nan")), (3, 2.0), (3, 1.0))]
    log = page.write_lines(page.root / "log.jsonl", lines)
    (curve,) = page.read(training_log=log).all("figure", "curve")
    assert curve["data-csv"].splitlines()[1:] == ["1,4.0", "3,1.0"]


def test_what_is_missing_or_synthetic_is_said(page):
    root = page.read(notes={"missing": ["the training log (run/metrics.jsonl)"]})
    assert "No training log was given" in root.text
    assert "No run.json was given" in root.text and "No tables.md was given." in root.text
    assert "Not found, so not shown: the training log (run/metrics.jsonl)" in root.text
    log = page.write_lines(page.root / "short.jsonl", [{"step": 1, "loss": 1.0}])
    root = page.read(training_log=log)
    assert "no values for: Cross-entropy of answer tokens; Box part, 1 − GIoU; Box" in root.text
    banner = next(page.read().all("div", "banner")).text
    assert "research only" in banner and "Synthetic" not in banner
    page.records = [page.record(i, dataset="synthetic") for i in range(page.images)]
    assert "Synthetic radiographs" in next(page.read().all("div", "banner")).text


def test_what_was_run_is_printed(page):
    bootstrap = {"confidence": 0.9, "resamples": 2000, "seed": 5, "clustered_by": ["patient"]}
    notes = {"run": {"seed": 7, "versions": {"jax": "0.10.2"}}, "remarks": ["A."]}
    assert "Intervals:" not in page.read(notes=notes).text
    notes["score"] = {"gt_mode": "per_reader", "bootstrap": bootstrap}
    root = page.read(notes=notes)
    assert "Ground truth: per_reader. Intervals: 90 % by bootstrap, 2,000 resamples" in root.text
    assert "clustered by patient, seed 5." in root.text
    run = next(root.all("dl", "run"))
    pairs = dict(zip([d.text for d in run.all("dt")], [d.text for d in run.all("dd")], strict=True))
    assert pairs == {"seed": "7", "versions.jax": "0.10.2"}
    assert "A." in next(root.all("div", "banner")).text
    assert "10 questions about 10 radiographs with 10 true boxes" in root.text
    assert "questions by templates 4" in root.text


@pytest.mark.parametrize(("change", "message"), ROWS["no_inputs"])
def test_unusable_arguments_are_user_errors(page, change, message):
    with pytest.raises(UserError, match=message):
        page.read(**change)


def test_files_that_do_not_fit_the_page_are_named(page):
    fitting, page.predictions["base"] = page.predictions["base"], [page.prediction(99, [])]
    with pytest.raises(UserError, match=r"base\.jsonl: answers none of the 10 questions"):
        page.read()
    page.predictions["base"] = fitting
    page.records[5] = page.record(5, image_hw=None)
    with pytest.raises(UserError, match="image-5-0: image_hw is null"):
        page.read()
    page.records[5] = page.record(5)
    log = page.write_lines(page.root / "log.jsonl", [{"step": 1, "loss": 1.0}, {"loss": 2.0}])
    with pytest.raises(UserError, match=r"log\.jsonl:2"):
        page.read(training_log=log)
    (page.root / "out").write_text("in the way")
    with pytest.raises(UserError, match="cannot write: "):
        page.read()
