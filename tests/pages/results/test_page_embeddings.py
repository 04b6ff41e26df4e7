"""The map of images: places, colours by error, links to cases; and the command that makes it."""

import json
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from sklearn.decomposition import PCA

from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.records import write_records
from cxrjax.tools import image_features
from cxrjax.tools.image_features import embedding
from tests.serving.conftest import tiny_model


def _map(page):
    """Of the page's images but the last, which the map doesn't have, and of one more."""
    places = {f"image-{n}": [float(n), float(n % 3)] for n in range(page.images - 1)}
    return {"method": "PCA", "explained": [0.5, 0.25], "images": places | {"other": [0, 0]}}


def test_points_have_the_places_colours_and_addresses_of_their_cases(page):
    page.predictions["tuned"][3]["boxes"] = []
    root = page.read(embedding=_map(page))
    figures = {f["data-name"]: f for f in root.all("figure") if "embedding" in f["data-name"]}
    assert list(figures) == ["embedding/base", "embedding/tuned"]
    rows = [line.split(",") for line in figures["embedding/tuned"]["data-csv"].splitlines()[1:]]
    assert len(rows) == page.images - 1
    kinds = {name: kind for name, _, _, kind, _ in rows}
    assert kinds["image-3"] == "missed" and kinds["image-0"] == "right"
    assert rows[4] == ["image-4", "4.0", "1.0", "right", "image-4-0"]
    points = list(figures["embedding/tuned"].all("a"))
    links = {point["href"]: point["aria-label"] for point in points}
    assert links["#q=image-3-0"] == "image-3: missed" and len(links) == page.images - 1
    by_colour = {
        link["href"] for link in points if "#b388ff" in str(next(link.all("use")).attributes)
    }
    assert by_colour == {"#q=image-3-0"}
    assert "PCA 1, 50 % of the variance" in figures["embedding/tuned"].text
    assert "1 missed" in next(figures["embedding/tuned"].all("div", role="group"))["aria-label"]


def test_without_a_map_nothing_is_said(page):
    page.write()
    assert "Images as the model sees them" not in page.html


@pytest.mark.parametrize(
    "content",
    [[], {}, {"images": {"image-0": [1]}}, {"images": {"image-0": [1, float("nan")]}}]
    + [{"images": {"image-0": ["a", 1]}}, {"images": {}, "explained": "much"}],
)
def test_what_is_no_map_is_refused(page, content):
    with pytest.raises(UserError, match=r"embedding: .*expected"):
        page.write(embedding=content)


def test_components_are_those_of_scikit_learn():
    drawn = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32) * [5, 3, 1, 1, 1]
    found = embedding({f"i{n}": row for n, row in enumerate(drawn)})
    fitted = PCA(2).fit(drawn)
    places = np.array([*found["images"].values()])
    np.testing.assert_allclose(np.abs(places), np.abs(fitted.transform(drawn)), atol=1e-4)
    np.testing.assert_allclose(found["explained"], fitted.explained_variance_ratio_, atol=1e-6)
    assert (places[np.abs(places).argmax(axis=0), [0, 1]] > 0).all()
    assert embedding({f"i{n}": row for n, row in enumerate(drawn)}) == found
    same = embedding({f"i{n}": np.ones(4, np.float32) for n in range(3)})
    assert same["explained"] == [0.0, 0.0] and json.dumps(same)
    with pytest.raises(UserError, match="expected three"):
        embedding({"a": drawn[0]})


@pytest.fixture
def mapped(page, monkeypatch):
    """`mapped(model, examples, batch)`: what the command makes of the page's images."""

    def run(model, examples, batch):
        generator = types.SimpleNamespace(model=model)
        opened = types.SimpleNamespace(generator=generator, examples=examples)
        monkeypatch.setattr("cxrjax.runners.own_model.open_model", lambda *_: opened)
        out = page.root / "embedding.json"
        flags = ["--checkpoint=none", f"--records={page.root / 'records.jsonl'}", f"--out={out}"]
        flags += [f"--image_root={page.root}", f"--images_per_batch={batch}"]
        image_features.main(flags)
        return json.loads(out.read_text())

    return run


def test_the_command_maps_what_the_tower_gives(page, mapped, drawn, capsys):
    """Whatever the size of a batch, the last of which is not full."""
    for n in range(page.images):
        noise = np.random.default_rng(n).integers(0, 255, (16, 16), np.uint8)
        Image.fromarray(noise).save(page.root / "images" / f"image-{n}.png")
    write_records(page.root / "records.jsonl", page.records)
    model = drawn(tiny_model)
    found = mapped(model, ExampleConfig(16), 4)
    assert "10 images; two components with" in capsys.readouterr().out
    images = [read_image(page.root / one.image_path) for one in page.records]
    features = np.asarray(model.image_features(jnp.stack(images)), np.float32).mean(axis=1)
    expected = embedding({one.image_id: f for one, f in zip(page.records, features, strict=True)})
    assert list(found["images"]) == [one.image_id for one in page.records]
    for name, place in expected["images"].items():
        assert found["images"][name] == pytest.approx(place, abs=1e-4)


class _Sees(nnx.Module):
    """Whose features of an image are its height and width."""

    vision = True

    def image_features(self, images):
        size = jnp.array(images.shape[1:3], jnp.float32)
        return jnp.broadcast_to(size, (len(images), 1, 2))


def test_the_command_shows_each_image_on_its_own_grid(page, mapped):
    grids = (32, 16), (16, 32), (16, 16)
    sizes = {record.image_id: grids[n % 3] for n, record in enumerate(page.records)}
    for record in page.records:
        Image.new("L", sizes[record.image_id][::-1]).save(page.root / record.image_path)
    records = [one.model_copy(update={"image_hw": sizes[one.image_id]}) for one in page.records]
    write_records(page.root / "records.jsonl", records)
    examples = ExampleConfig(16, grids=((32, 16), (16, 16), (16, 32)), geometry="letterbox")
    expected = embedding({name: np.array(size, np.float32) for name, size in sizes.items()})
    assert mapped(_Sees(), examples, 2) == expected


@pytest.mark.slow
def test_a_point_opens_its_case(page, browser):
    tab = browser.new_page()
    tab.goto(page.write(embedding=_map(page)).as_uri())
    tab.wait_for_selector("body[data-drawn]")
    tab.locator("figure[data-name='embedding/tuned'] a[href='#q=image-7-0']").click()
    tab.wait_for_selector("tr.wanted")
    assert tab.get_attribute("tr.wanted .ask", "aria-pressed") == "true"
    assert "image-7" in tab.inner_text(".card:has(tr.wanted) header")
