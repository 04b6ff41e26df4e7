"""Pages for people: results, the review of questions, and a page to try models in."""

from pathlib import Path

# What the results and the review pages look like.
STYLE_SHEET = Path(__file__).parent / "page.css"
