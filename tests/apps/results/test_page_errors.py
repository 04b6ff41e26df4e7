"""The kinds of errors of an answer, and how the page filters by them, saves figures and is read."""

import pytest

from cxrjax.apps.results.errors import MISPLACED, MISSED, RIGHT, SPURIOUS, WRONG, errors_of
from tests.apps.axe import accessibility_faults
from tests.apps.chromium import Watched
from tests.apps.rows import ROWS

A, NEAR_A = (0.1, 0.1, 0.4, 0.4), (0.12, 0.1, 0.42, 0.4)
B, C = (0.6, 0.6, 0.9, 0.9), (0.1, 0.6, 0.3, 0.9)


PLACES = {"A": A, "near A": NEAR_A, "B": B, "C": C}
KINDS = {"missed": MISSED, "misplaced": MISPLACED, "spurious": SPURIOUS}
KINDS |= {"wrong": WRONG, "right": RIGHT}


@pytest.mark.parametrize(("truth", "said", "right", "kinds"), ROWS["kinds_of_errors"])
def test_kinds_of_errors(truth, said, right, kinds):
    boxes = ([PLACES[name] for name in names] for names in (truth, said))
    found = errors_of(*boxes, {"right": True, "wrong": False, "undecided": None}[right])
    assert found == sum(KINDS[kind] for kind in kinds)


CURVE = {"x": [0.1, 0.5], "y": [0.2, 0.75], "x_label": "false, per image", "y_label": "recall"}


@pytest.fixture
def tab(page, browser):
    page.records.append(page.record(0, question_id="no-box", answers=[]))
    extra = page.prediction(0, [[0.1, 0.1, 0.3, 0.3]], question_id="no-box")
    page.predictions["tuned"].append(extra)
    table = "## T\n\n| a | b |\n|---|---|\n| c, d | 0.500 (0.4 to 0.6) |\n"
    curves = {"tuned": {"froc": CURVE}}
    path = page.write(curves=curves, training_log=page.log(), tables={"": table})
    opened = Watched(browser, path.as_uri(), accept_downloads=True).tab
    opened.wait_for_selector("body[data-drawn]")
    return opened


@pytest.mark.slow
def test_answers_are_filtered_by_kind_of_error(tab):
    def shown(label):
        tab.select_option("#toolbar [name=outcome-1]", label=label)
        tab.wait_for_timeout(300)
        ids = tab.query_selector_all("#cards article header b")
        return sorted(node.inner_text() for node in ids)

    assert shown("spurious") == ["image-0"]
    assert "spurious" in tab.inner_text("#cards") and "misplaced" not in tab.inner_text("#cards")
    # An IoU of 0.3 is still the same box: (.4 - .02 i) / (.4 + .02 i).
    assert shown("right") == [f"image-{n}" for n in range(10)]
    tab.select_option("#toolbar [name=outcome-1]", label="any outcome")
    tab.select_option("#toolbar [name=outcome-0]", label="misplaced")
    tab.wait_for_timeout(300)
    assert len(tab.query_selector_all("#cards article")) == 9


@pytest.mark.slow
def test_pictures_come_before_tables(tab):
    heads = [node.inner_text() for node in tab.query_selector_all("main h2")]
    assert heads.index("Single answers") == 0 < heads.index("Tables")


@pytest.mark.slow
def test_figures_are_saved_as_they_look_and_as_values(tab):
    def taken(selector, text):
        with tab.expect_download() as found:
            tab.click(f"{selector} .take:has-text('{text}')")
        return found.value.suggested_filename, found.value.path().read_text()

    name, text = taken("figure[data-name=froc]", "CSV")
    assert name == "froc.csv"
    lines = text.splitlines()
    assert lines == ['system,"false, per image",recall', "tuned,0.1,0.2", "tuned,0.5,0.75"]
    name, text = taken("figure[data-name=froc]", "SVG")
    assert name == "froc.svg" and text.startswith("<svg") and "var(" not in text
    assert 'stroke="rgb' in text or 'stroke="color(' in text
    name, text = taken("figure[data-name=loss]", "CSV")
    assert len(text.splitlines()) == 101 and text.splitlines()[1] == "0,3.0"
    name, text = taken(".scroll:has(.paper-table) + .takes", "CSV")
    assert text.splitlines() == ["a,b", '"c, d",0.500 0.4 to 0.6']


@pytest.mark.slow
def test_nothing_serious_is_in_the_way_of_anybody(page, browser):
    page.inputs["metrics"]["tuned"]["strict"]["few"] = page.entry(0.5, 4)
    path = page.write(curves={"tuned": {"froc": CURVE}}, training_log=page.log())

    def prepare(tab):
        tab.wait_for_selector("#cards article")
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")

    assert accessibility_faults(browser, path.as_uri(), prepare) == []
