"""ViX-Ray's errors in colour, and a sheet of them to be judged."""

import csv

import pytest

from bench import vix_ray_errors
from tests.apps.axe import accessibility_faults
from tests.apps.chromium import chromium
from tests.evaluation import made
from tests.papers.vix_ray.test_vix_ray_scores import predict


def write_errors(folder, said):
    """Runs the command over answers to stage 1; returns its flags and folder."""
    predict(folder, "m", "stage1-findings", said)
    references, out = folder / "records.jsonl", folder / "errors"
    flags = [f"--references={references}", f"--predictions={folder / 'm.jsonl'}", f"--out={out}"]
    vix_ray_errors.main(flags)
    return flags, out


def test_errors_in_colour_and_a_sheet(folder):
    said = ["Bóng tim to. <b>Gãy xương</b> đòn.", "Xin lỗi, tôi không thể trả lời."]
    flags, out = write_errors(folder, said)
    counts = made.read_json(out / "errors.json")
    assert counts["refusal"] == 1 and counts["answers"] == 2
    assert (counts["correct"], counts["hallucinated"], counts["missing"]) == (1, 1, 3)
    page = (out / "errors.html").read_text()
    assert '<span class="correct"' in page and "&lt;b&gt;" in page and "<b>" not in page
    raw = (out / "errors.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    with open(out / "errors.csv", encoding="utf-8-sig", newline="") as sheet:
        rows = list(csv.DictReader(sheet))
    assert len(rows) == 6 and all(row["judged"] == "" for row in rows)
    assert [row["guess"] for row in rows].count("refusal") == 1
    one, two = made.read_lines(out / "spans.jsonl")
    cut = [(one["predicted_text"][a:b], label) for a, b, label in one["predicted"]]
    assert cut == [("Bóng tim to", "correct"), ("<b>Gãy xương</b> đòn", "hallucinated")]
    cut = [(one["reference_text"][a:b], label) for a, b, label in one["reference"]]
    assert cut == [("Bóng tim to", "correct"), ("Góc sườn hoành hai bên nhọn", "missing")]
    assert two["refused"] and two["predicted"] == [] and len(two["reference"]) == 2
    first = (out / "errors.html").read_bytes()
    vix_ray_errors.main(flags)
    assert (out / "errors.html").read_bytes() == first


@pytest.mark.slow
def test_colours_of_errors_can_be_read(folder):
    _, out = write_errors(folder, ["Bóng tim to. Gãy xương đòn."])
    with chromium() as browser:
        page = (out / "errors.html").as_uri()
        assert accessibility_faults(browser, page) == []
