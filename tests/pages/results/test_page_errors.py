"""The kinds of errors of an answer, and how the page filters by them, saves figures and is read."""

import shutil

import pytest

from cxrjax.pages.results.errors import MISPLACED, MISSED, RIGHT, SPURIOUS, WRONG, errors_of

A, NEAR_A, B, C = (
    (0.1, 0.1, 0.4, 0.4),
    (0.12, 0.1, 0.42, 0.4),
    (0.6, 0.6, 0.9, 0.9),
    (0.1, 0.6, 0.3, 0.9),
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.mark.parametrize(
    ("truth", "said", "right", "kinds"),
    [
        ([A], [NEAR_A], None, RIGHT),
        ([A], [NEAR_A], True, RIGHT),
        ([A], [NEAR_A], False, WRONG),
        ([A], [], True, MISSED),
        ([A], [], False, MISSED | WRONG),
        ([], [A], True, SPURIOUS),
        ([A], [B], True, MISPLACED),
        ([A, B], [NEAR_A], True, MISSED),
        ([A], [NEAR_A, A, B], True, SPURIOUS),
        ([A, B], [C], True, MISPLACED | MISSED),
        ([A], [B, C], True, MISPLACED | SPURIOUS),
        ([], [], True, RIGHT),
        ([], [], None, 0),
    ],
)
def test_kinds_of_errors(truth, said, right, kinds):
    assert errors_of(truth, said, right) == kinds


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


CURVE = {"x": [0.1, 0.5], "y": [0.2, 0.75], "x_label": "false, per image", "y_label": "recall"}


@pytest.fixture
def tab(page, browser):
    page.records.append(page.record(0, question_id="no-box", answers=[]))
    extra = page.prediction(0, [[0.1, 0.1, 0.3, 0.3]], question_id="no-box")
    page.predictions["tuned"].append(extra)
    table = "## T\n\n| a | b |\n|---|---|\n| c, d | 0.500 (0.4 to 0.6) |\n"
    path = page.write(
        curves={"tuned": {"froc": CURVE}}, training_log=page.log(), tables={"": table}
    )
    opened = browser.new_page(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    opened.goto(path.as_uri())
    opened.wait_for_selector("body[data-drawn]")
    yield opened
    opened.close()


@in_browser
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


@in_browser
@pytest.mark.slow
def test_pictures_come_before_tables(tab):
    heads = [node.inner_text() for node in tab.query_selector_all("main h2")]
    assert heads.index("Single answers") == 0 < heads.index("Tables")


@in_browser
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


@in_browser
@pytest.mark.slow
def test_nothing_serious_is_in_the_way_of_anybody(page, browser):
    axe = pytest.importorskip("tests.pages.axe")
    page.inputs["metrics"]["tuned"]["strict"]["few"] = page.entry(0.5, 4)
    path = page.write(curves={"tuned": {"froc": CURVE}}, training_log=page.log())

    def prepare(tab):
        tab.wait_for_selector("#cards article")
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")

    assert axe.accessibility_faults(browser, path.as_uri(), prepare) == []
