"""Draws the pictures of docs/gallery.md: `python docs/draw_gallery.py` (needs Chromium).

Twelve radiographs that ship are imported with their masks; the page of what was read, and a
review of the questions, are photographed.
"""

import shutil
import tempfile
from pathlib import Path

from cxrjax.commands import build, review
from tests.apps.chromium import chromium

ROOT = Path(__file__).parents[1]
RADIOGRAPHS = ROOT / "data" / "radiographs"
IMAGES = 12
WIDTH, HEIGHT = 1280, 800


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pages = make_pages(Path(folder))
        for name, page in pages.items():
            size = {"width": WIDTH, "height": HEIGHT}
            tab = browser.new_context(viewport=size, color_scheme="light").new_page()
            tab.goto(page.as_uri())
            if name == "review":
                tab.fill("#reader", "anna")
                for key in ("Enter", "Escape", "]", "ArrowRight", "ArrowDown"):
                    tab.keyboard.press(key)
            tab.wait_for_load_state("networkidle")
            tab.wait_for_timeout(1000)
            tab.screenshot(path=ROOT / "docs" / f"gallery_{name}.jpg", quality=75, type="jpeg")


def make_pages(folder: Path) -> dict[str, Path]:
    """Name -> page, made in the folder."""
    source, out = folder / "source", folder / "out"
    (source / "masks" / "lung").mkdir(parents=True)
    for mask in sorted((RADIOGRAPHS / "masks").iterdir())[:IMAGES]:
        shutil.copy(mask, source / "masks" / "lung")
        (image,) = (RADIOGRAPHS / "images").glob(f"{mask.stem}.*")
        shutil.copy(image, source)
    build.main(["--dataset=boxes", f"--input={source}", f"--out={out}", "--accept"])
    records = f"--records={out / 'records' / 'train.jsonl'}"
    review.main([records, "--sample=5", f"--out={folder / 'review'}"])
    return {"import": out / "look" / "index.html", "review": folder / "review" / "index.html"}


if __name__ == "__main__":
    main()
