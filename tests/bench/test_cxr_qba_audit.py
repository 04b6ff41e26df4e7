"""The page of records that a radiologist grades, and what is read of it."""

import collections
import csv

from bench import cxr_qba_audit


def test_the_audit_is_drawn_by_grade_and_read_back(phantoms, tmp_path, capsys):
    cxr_qba_audit.main(
        [f"--build={phantoms[1].out}", f"--out={tmp_path}", "--count=40", "--by_grade"]
    )
    assert "40 records, 0 with a contradiction" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "sheet.csv").open()))
    counts = collections.Counter(row["graded"] for row in rows)
    assert len(counts) >= 3 and max(counts.values()) < 30
    page = (tmp_path / "page.html").read_text()
    assert page.count("<section>") == 40 and "data:image/jpeg" in page
    for number, row in enumerate(rows):
        row["right"] = "no" if row["graded"] == "D" else "unsure" if number == 0 else "yes"
        row["grade"] = row["graded"]
    with (tmp_path / "filled.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    cxr_qba_audit.main([f"--sheet={tmp_path / 'filled.csv'}"])
    said = capsys.readouterr().out
    assert "the same in 40" in said and "kappa 1.00" in said
    assert "Unsure: 1 of 40." in said or counts["D"]
