"""The page says what the files say: its tables, its curves, its words."""

import pytest

from cxrjax.errors import UserError
from cxrjax.records import Answer


def test_figures_stand_as_in_the_metrics_base_before_tuned(page):
    root = page.read()
    base, tuned, _, n, *paper = page.row(page.table(root, "table_4"), "Paper", "F1")
    assert [next(cell.all("b")).text for cell in (base, tuned)] == ["0.551", "0.842"]
    assert next(tuned.all("small")).text == "0.822 to 0.862"
    assert tuned["title"].startswith("0.84217")
    assert n.text == "1,200"
    assert [cell.text for cell in paper] == ["0.558", "0.624"]

    strict = page.row(page.table(root, "table_5"), "Strict", "F1")
    assert [next(cell.all("b")).text for cell in strict[:2]] == ["0.224", "0.666"]
    assert [cell.text for cell in strict[4:]] == ["", ""], "the paper has no strict figures"
    further = page.row(page.table(root, "table_4"), "Strict", "Balanced accuracy")
    assert "0.913" in further[1].text


def test_table_6_is_in_per_cent_as_in_the_paper(page):
    good = page.row(page.table(page.read(), "table_6"), "Paper", "IoU>0.5 (%)")
    assert next(good[1].all("b")).text == "57.7" and good[1]["title"].startswith("0.57721")
    assert next(good[1].all("small")).text == "55.7 to 59.7"
    assert [cell.text for cell in good[4:]] == ["1.1", "22.8"]


def test_the_papers_errors_are_noted(page):
    root = page.read()
    (region,) = root.all("div", "scroll", aria_labelledby="table_5")
    marked = {next(row.all("th")).text for row in region.all("tr") if list(row.all("sup"))}
    assert marked == {"F11", "mIoU (TP)2"}
    assert "0.080" in root.text and "cannot be a mean over boxes" in root.text


def test_every_metric_of_the_file_is_on_the_page(page):
    everything = page.table(page.read(), "all_metrics").text
    for protocols in page.metrics.values():
        for named in protocols.values():
            for metric, entry in named.items():
                assert metric in everything
                assert entry["value"] is None or f"{entry['value']:.3f}" in everything


def test_undefined_and_unmeasured_are_a_dash_and_zero_is_zero(page):
    root = page.read()
    base, tuned, *_ = page.row(page.table(root, "table_4"), "Paper", "Acc.")
    assert base.text == "–" and "0.842" in tuned.text
    undefined, measured, *_ = page.row(page.table(root, "table_5"), "Strict", "mIoU (TP)")
    assert undefined.text == "–" and "0.693" in measured.text
    assert undefined["title"] == "undefined or not measured, n = 300"
    accuracy = page.row(page.table(root, "all_metrics"), "Paper", "vqa/accuracy")
    assert [cell.text for cell in accuracy[:2]] == ["–", "–"]
    _, tuned, *_ = page.row(page.table(root, "parse_failures"), "All answers", "Any failure")
    assert next(tuned.all("b")).text == "0.000"


def test_nan_is_undefined_too(page):
    page.arguments["metrics"]["tuned"]["strict"]["detection/f1@0.3"]["value"] = float("nan")
    _, tuned, *_ = page.row(page.table(page.read(), "table_5"), "Strict", "F1")
    assert tuned.text == "–" and "nan" not in tuned["title"]


def test_the_papers_rows_stand_even_if_nothing_was_measured(page):
    page.arguments["metrics"] = {"tuned": {}}
    table = page.table(page.read(), "table_4")
    assert page.row(table, "Paper", "Recall")[0].text == "–"
    with pytest.raises(AssertionError, match="no row"):
        page.row(table, "Strict", "Balanced accuracy")


def test_classes_are_listed_with_their_marks(page):
    root = page.read(notes={"classes_seen_by_base": ["Nodule/Mass"]})
    (region,) = root.all("div", "scroll", data_key="by_class")
    rows = {next(r.all("th")).text: r for r in region.all("tr")}
    nodule, rare = rows["Nodule/Mass seen by base"], rows["Atelectasis"]
    assert "0.414" in nodule.text and "55" in nodule.text
    cells = [cell for cell in rare.all("td", "num") if "title" in cell.attributes]
    (f1,) = [cell for cell in cells if "0.732" in cell.text]
    assert "few" in f1.classes, "n = 4 is few"
    assert not any("few" in cell.classes for cell in nodule.all("td"))
    # The base has no figures by class: dashes, as has the undefined mean IoU.
    assert [cell.text for cell in cells if cell is not f1] == ["–"] * 3
    (region,) = root.all("div", "scroll", data_key="by_question_type")
    assert "Where" in region.text and "0.809" in region.text


def test_parse_failures_by_category(page):
    never = page.entry(0.0, 1200)
    page.arguments["metrics"]["tuned"]["strict"]["parse_failure_rate/refusal"] = never
    _, tuned, *_ = page.row(page.table(page.read(), "parse_failures"), "All answers", "wrong arity")
    assert "0.001" in tuned.text
    assert "refusal" not in page.table(page.read(), "parse_failures").text


def test_all_text_is_escaped(page):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    page.records = [
        page.record(
            i,
            question=evil,
            question_type=evil,
            variables={"finding": evil},
            answers=[
                Answer(text=evil, labels=[evil], boxes_by_image={f"image-{i}": [[8, 20, 40, 60]]})
            ],
        )
        for i in range(page.images)
    ]
    page.predictions["tuned"] = [page.prediction(i, [], text=evil) for i in range(page.images)]
    page.arguments["metrics"][evil] = {evil: {evil: page.entry(0.5)}}
    root = page.read(
        title=evil,
        notes={
            "remarks": [evil],
            "missing": [evil],
            "run": {evil: {evil: evil}},
            "classes_seen_by_base": [evil],
        },
    )
    assert len(list(root.all("script"))) == 1
    assert not [image for image in root.all("img") if "onerror" in image.attributes]
    assert next(root.all("h1")).text == evil
    assert next(root.all("button", "ask")).text == evil
    assert evil in next(root.all("dl", "run")).text


def test_nothing_is_loaded_from_anywhere(page):
    page.arguments["training_log"] = page.log()
    root = page.read()
    for node in root.all():
        for name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
            value = node.attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), f"{node.tag} {name}={value}"
        assert "url(" not in (node.attributes.get("style") or "")
        assert node.tag not in ("link", "iframe", "object", "embed", "base")
    style = next(root.all("style")).text
    assert "url(" not in style and "@import" not in style
    script = next(root.all("script")).text
    assert not any(word in script for word in ("fetch(", "XMLHttp", "import(", "http", ".src"))


def test_curves_are_drawn(page):
    root = page.read(training_log=page.log())
    curves = {next(c.all("code")).text: c for c in root.all("figure", "curve")}
    assert list(curves) == ["loss", "ce", "giou_loss", "validation/vqa/f1"]
    summary = next(curves["loss"].all("svg"))["aria-label"]
    assert "steps 0 to 99" in summary and "first 3," in summary and "last 2.01," in summary
    assert [next(d.all("title")).text for d in curves["validation/vqa/f1"].all("circle")] == [
        "step 0: 0.5",
        "step 50: 0.625",
        "step 99: 0.7475",
    ]


def test_long_series_are_drawn_through_all_of_their_course(page):
    root = page.read(training_log=page.log())
    curves = {next(c.all("code")).text: c for c in root.all("figure", "curve")}
    for line in curves["loss"].all("polyline"):
        points = [tuple(map(float, p.split(","))) for p in line["points"].split()]
        xs, ys = zip(*points, strict=True)
        assert xs[0] == 44 and xs[-1] == 332, "from the first step to the last"
        assert list(ys) == sorted(ys) and ys[0] < 40 and ys[-1] > 120, "a falling loss falls"


def test_values_that_are_no_numbers_leave_a_gap_and_a_resumed_step_counts_once(page):
    lines = [{"step": s, "loss": v} for s, v in ((1, 4.0), (2, float("nan")), (3, 2.0), (3, 1.0))]
    log = page.write_lines(page.root / "log.jsonl", lines)
    (curve,) = page.read(training_log=log).all("figure", "curve")
    titles = [next(dot.all("title")).text for dot in curve.all("circle")]
    assert titles == ["step 1: 4", "step 3: 1"]


def test_the_papers_protocol_is_the_one_that_chooses(page):
    names = ("eval/strict/vqa/f1", "eval/paper/vqa/f1", "eval/by_class/vqa/f1/ILD")
    log = page.write_lines(page.root / "log.jsonl", [{"step": 1, **dict.fromkeys(names, 0.5)}])
    (curve,) = page.read(training_log=log).all("figure", "curve")
    assert next(curve.all("code")).text == "eval/paper/vqa/f1"


def test_what_is_missing_is_said(page):
    root = page.read(notes={"missing": ["the training log (run/metrics.jsonl)"]})
    assert "No training log was given" in root.text
    assert "No run.json was given" in root.text
    assert "Not found, so not shown: the training log (run/metrics.jsonl)" in root.text
    log = page.write_lines(page.root / "short.jsonl", [{"step": 1, "loss": 1.0}])
    root = page.read(training_log=log)
    assert "no values for: Cross-entropy of answer tokens; Box part, 1 − GIoU; Val" in root.text
    page.arguments["metrics"] = {"tuned": {"strict": {}}}
    assert "The metrics hold no figures by class." in page.read().text


def test_what_was_run_is_printed(page):
    root = page.read(notes={"run": {"seed": 7, "versions": {"jax": "0.10.2"}}, "remarks": ["A."]})
    run = next(root.all("dl", "run"))
    pairs = dict(zip([d.text for d in run.all("dt")], [d.text for d in run.all("dd")], strict=True))
    assert pairs == {"seed": "7", "versions.jax": "0.10.2"}
    assert "A." in next(root.all("div", "banner")).text
    assert "Intervals:" not in root.text
    assert "10 questions about 10 radiographs with 10 true boxes" in root.text
    assert "questions by templates 3" in root.text


def test_how_the_figures_came_about_is_said(page):
    bootstrap = {"confidence": 0.9, "resamples": 2000, "seed": 5, "clustered_by": ["patient"]}
    root = page.read(notes={"score": {"gt_mode": "per_reader", "bootstrap": bootstrap}})
    assert "Ground truth: per_reader. Intervals: 90 % by bootstrap, 2,000 resamples" in root.text
    assert "clustered by patient, seed 5." in root.text


def test_it_says_what_it_is_for_and_that_phantoms_are_synthetic(page):
    banner = next(page.read().all("div", "banner")).text
    assert "research only" in banner and "Synthetic" not in banner
    page.records = [page.record(i, dataset="synthetic") for i in range(page.images)]
    assert "Synthetic radiographs" in next(page.read().all("div", "banner")).text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notes": {"remark": []}}, "unknown key 'remark'"),
        ({"metrics": {}}, "no systems"),
        ({"metrics": {"a": {"paper": {"vqa/f1": 0.5}}}}, "a/paper/vqa/f1 has no value"),
        ({"metrics": {"a": 3}}, "a is not an object"),
        ({"metrics": {"a": {"paper": {"x": {"value": "1"}}}}}, "a/paper/x/value is '1'"),
        ({"training_log": "no-such-log.jsonl"}, "no-such-log.jsonl"),
    ],
)
def test_unusable_arguments_are_user_errors(page, change, message):
    with pytest.raises(UserError, match=message):
        page.read(**change)


def test_a_log_line_without_step_is_named(page):
    log = page.write_lines(page.root / "log.jsonl", [{"step": 1, "loss": 1.0}, {"loss": 2.0}])
    with pytest.raises(UserError, match=r"log\.jsonl:2"):
        page.read(training_log=log)


def test_records_without_a_size_are_refused(page):
    page.records[5] = page.record(5, image_hw=None)
    with pytest.raises(UserError, match="image-5-0: image_hw is null"):
        page.read()


def test_predictions_of_another_split_are_refused(page):
    page.predictions["base"] = [page.prediction(99, [])]
    with pytest.raises(UserError, match=r"base\.jsonl: answers none of the 10 questions"):
        page.read()


def test_an_unwritable_place_is_a_user_error(page):
    (page.root / "out").write_text("in the way")
    with pytest.raises(UserError, match="cannot write the page"):
        page.read()
