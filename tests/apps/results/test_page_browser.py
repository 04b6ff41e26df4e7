"""The page in a real browser: filters, order, pages of cards, links, and no request."""

import pytest

from tests.apps.chromium import DESKTOP, PHONE, Watched

pytestmark = pytest.mark.slow
EVIL = "<script>window.hit=1</script><img src=x onerror='window.hit=1'>"


class Opened(Watched):
    """A page in the browser, from a disk."""

    def __init__(self, *told):
        super().__init__(*told)
        self.settle()

    def settle(self):
        """Until what is drawn is what was asked for last."""
        self.tab.wait_for_selector("body[data-drawn]")
        self.tab.wait_for_timeout(250)  # typing is waited for

    def choose(self, name: str, label: str) -> None:
        self.tab.select_option(f"#toolbar [name={name}]", label=label)
        self.settle()

    @property
    def count(self) -> str:
        return self.tab.inner_text("#count")

    @property
    def cards(self) -> list[str]:
        return [b.inner_text() for b in self.tab.query_selector_all("#cards .talk header b")]

    def rectangles(self, system: str) -> int:
        return len(self.tab.query_selector_all(f'#cards [data-system="{system}"] rect'))


@pytest.fixture
def opened(page, browser):
    """Opens the page's run; a question of one image cannot be answered, one asks for more."""
    page.records.append(
        page.record(3, question_id="what?&#é", question=f"What? {EVIL}", question_type="What")
    )
    page.records += [page.record(i, image_id=f"image-{i}", question_id=f"m{i}") for i in (5, 6)]
    page.predictions["base"][0]["text"] = "There is no Nodule/Mass."
    page.predictions["tuned"][8]["text"] = EVIL
    tabs = []

    def open_page(viewport=DESKTOP, hash_="", **changes) -> Opened:
        tabs.append(Opened(browser, page.write(**changes).as_uri() + hash_, viewport))
        return tabs[-1]

    yield open_page
    for one in tabs:
        assert one.wrong == one.told == [] and one.asked_only("file://", "data:")


@pytest.mark.parametrize("pictures", ["file", "folder"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP])
def test_it_opens_from_a_disk_and_fits_the_screen(opened, pictures, viewport):
    one = opened(viewport, pictures=pictures)
    assert one.count == "10 images, 13 of 13 questions"
    assert one.rectangles("truth") == 13 and one.rectangles("base") == 9
    assert one.fits()
    image = one.tab.query_selector("#cards img")
    image.scroll_into_view_if_needed()
    one.tab.wait_for_timeout(200)
    assert image.evaluate("image => image.naturalWidth") == 80
    assert one.tab.evaluate("window.hit") is None, "text of answers is no code"
    assert "onerror" in one.tab.inner_text("#cards")


def test_the_worst_come_first_and_can_come_last(opened):
    one = opened()
    worst = one.cards
    # Questions without a prediction; then the further the tuned box is, the worse.
    assert set(worst[:3]) == {"image-3", "image-5", "image-6"}
    assert worst[3:] == [f"image-{i}" for i in (9, 8, 7, 4, 2, 1, 0)]
    one.choose("order", "best first")
    assert one.cards == worst[::-1]
    one.choose("order", "as in the file")
    assert one.cards == [f"image-{i}" for i in range(10)]


def test_filters_by_type_class_words_and_outcome(opened):
    one = opened()
    one.choose("type", "What")
    assert one.cards == ["image-3"] and one.count == "1 images, 1 of 13 questions"
    one.choose("type", "all")
    one.choose("subject", "Cardiomegaly")
    assert sorted(one.cards) == [f"image-{i}" for i in (1, 3, 5, 7, 9)]
    one.tab.fill("#toolbar [name=words]", "IMAGE-5")
    one.settle()
    assert one.cards == ["image-5"] and one.count == "1 images, 2 of 13 questions"
    one.tab.click("#clear")
    one.settle()
    assert one.count == "10 images, 13 of 13 questions"
    one.choose("outcome-0", "wrong answer")
    assert one.cards == ["image-0"]
    one.choose("outcome-1", "wrong answer")
    assert one.cards == [] and one.tab.is_visible("#nothing")
    one.choose("outcome-0", "no prediction")
    one.choose("outcome-1", "any outcome")
    assert one.count == "3 images, 3 of 13 questions"


def test_boxes_can_be_switched_off_and_shown_for_one_question(opened):
    one = opened()
    one.tab.uncheck("#toolbar [name=system][value='1']")
    assert one.rectangles("tuned") == 0 and one.rectangles("truth") == 13
    one.choose("type", "Where")
    one.tab.fill("#toolbar [name=words]", "image-5")
    one.settle()
    assert one.rectangles("truth") == 2
    one.tab.click("#cards .ask >> nth=1")
    assert one.rectangles("truth") == 1 and one.rectangles("base") == 0
    one.tab.click("#cards .ask >> nth=1")
    assert one.rectangles("truth") == 2


def test_names_of_boxes_lie_in_the_picture_and_apart(opened, page):
    corners = [[0.1 * i, 0.02, 0.1 * i + 0.09, 0.5] for i in range(9)]
    page.predictions["base"][1] |= {
        "boxes": corners,
        "labels": ["Pleural thickening", "Nodule/Mass", "ILD"] * 3,
        "box_scores": [0.5] * 9,
    }
    one = opened()
    for svg in one.tab.query_selector_all("#cards .frame svg"):
        frame = svg.bounding_box()
        names = [text.bounding_box() for text in svg.query_selector_all("text")]
        for number, a in enumerate(names):
            # Letters have an edge of some pixels.
            assert a["x"] >= frame["x"] - 3 and a["y"] >= frame["y"] - 4
            assert a["x"] + a["width"] <= frame["x"] + frame["width"] + 3
            for b in names[:number]:
                across = a["x"] < b["x"] + b["width"] and b["x"] < a["x"] + a["width"]
                assert not across or abs(a["y"] - b["y"]) >= 10


def test_a_link_opens_its_question(opened):
    link = "#q=what%3F%26%23%C3%A9"
    one = opened(hash_=link)
    wanted = one.tab.query_selector("tr.wanted")
    assert EVIL in wanted.inner_text()
    assert wanted.query_selector(".ask").get_attribute("aria-pressed") == "true"
    assert wanted.query_selector("a").get_attribute("href") == link
    assert one.tab.evaluate("document.activeElement.className") == "ask"
    covered = one.tab.query_selector("#filters").bounding_box()
    card = one.tab.query_selector(".card:has(tr.wanted)").bounding_box()
    assert covered["y"] + covered["height"] <= card["y"] + 1, "the filters do not cover it"
    # Also where filters hide it.
    one.choose("type", "Where")
    one.tab.evaluate("location.hash = ''")
    one.tab.evaluate(f"location.hash = '{link}'")
    one.settle()
    assert EVIL in one.tab.inner_text("tr.wanted")
    one.tab.evaluate("location.hash = '#q=nobody'")
    one.settle()
    assert "No question nobody is on this page." in one.tab.inner_text("#problem")


def test_many_images_stand_on_pages_reached_by_keyboard(opened, page):
    page.records += [
        page.record(i % 10, image_id=f"more-{i}", question_id=f"more-{i}", answers=[])
        for i in range(30)
    ]
    one = opened(pictures="folder")
    one.choose("order", "as in the file")
    assert len(one.cards) == 10 and "page 1 of 4" in one.tab.inner_text(".pager")
    one.tab.focus(".pager [value=on]")
    one.tab.keyboard.press("Enter")
    one.settle()
    assert one.cards == [f"more-{i}" for i in range(10)]
    one.tab.evaluate("location.hash = '#q=more-29'")
    one.settle()
    assert "more-29" in one.cards and one.tab.query_selector("tr.wanted")


def test_a_missing_part_is_said(page, browser):
    path = page.write(pictures="folder")
    (path.parent / "index_files" / "part-0.js").unlink()
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("#problem:not([hidden])")
    assert "part-0.js cannot be read: it belongs beside this page" in tab.inner_text("#problem")


def test_a_sentence_under_the_pointer_lights_its_boxes_and_a_box_its_sentence(opened, page):
    boxes = [[10.0, 10.0, 30.0, 30.0], [50.0, 20.0, 70.0, 60.0]]
    said = ["Clear heart.", "Effusion. <loc_10_10_30_30>", "A nodule. <loc_50_20_70_60>"]
    answers = [{"text": said[0]}] + [
        {"text": text, "boxes_by_image": {"lit": [box]}}
        for text, box in zip(said[1:], boxes, strict=True)
    ]
    page.records = [page.record(0, image_id="lit", question_id="lit", answers=answers)]
    page.predictions["base"][0] |= {"question_id": "lit"}
    page.predictions = {"base": page.predictions["base"][:1]}
    one = opened()
    lit = """() => [...document.querySelectorAll('.lit')].map(
        lit => lit.dataset.box?.split('/')[2] ?? lit.textContent.trim())"""
    one.tab.hover("td[data-system='-1'] .sentence:has-text('nodule')")
    assert sorted(one.tab.evaluate(lit)) == ["2", "A nodule. (2)"]
    one.tab.hover("[data-system=truth] rect[data-box$='/1']")
    assert sorted(one.tab.evaluate(lit)) == ["1", "Effusion. (1)"]
    one.tab.hover("td[data-system='-1'] .sentence:has-text('heart')")
    assert one.tab.evaluate(lit) == []
