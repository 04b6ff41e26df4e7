"""OpenI's XML reports, from a folder, an archive and a wheel."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.papers.sources import openi
from cxrjax.papers.sources.openi import ARCHIVE_NAME, MAX_BYTES, is_openi, parse_openi, read_openi
from cxrjax.records_io.quality import QualityLog, Unusable

_ROOT = Path(__file__).parents[2]


def xml(number, findings="The heart is normal.", impression="No acute disease."):
    told = {"COMPARISON": "None.", "INDICATION": "Cough &amp; fever"}
    told |= {"FINDINGS": findings, "IMPRESSION": impression}
    sections = (f'<AbstractText Label="{k}">{text}</AbstractText>' for k, text in told.items())
    return (
        f'<?xml version="1.0" encoding="utf-8"?><eCitation><uId id="CXR{number}"/>'
        f"<Abstract>{''.join(sections)}</Abstract>"
        f'<parentImage id="CXR{number}_IM-1"/><parentImage id="CXR{number}_IM-2"/></eCitation>'
    ).encode()


def archive(files, folder="ecgen-radiology/"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_folder_archive_and_wheel_hold_the_same_in_order_of_numbers(tmp_path):
    files = {f"{number}.xml": xml(number) for number in (10, 2, 1)}
    folder = tmp_path / "xml"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (tmp_path / ARCHIVE_NAME).write_bytes(archive(files))
    with zipfile.ZipFile(tmp_path / "torchxrayvision-1.5.7.whl", "w") as wheel:
        wheel.writestr(f"torchxrayvision/data/{ARCHIVE_NAME}", archive(files))
    names = ("xml", ARCHIVE_NAME, "torchxrayvision-1.5.7.whl")
    read = [list(read_openi(tmp_path / name, QualityLog())) for name in names]
    assert read[0] == read[1] == read[2]
    assert [report.report_id for report in read[0]] == ["CXR1", "CXR2", "CXR10"]
    assert read[0][0].indication == "Cough & fever"
    assert read[0][0].image_ids == ("CXR1_IM-1", "CXR1_IM-2")
    assert all(is_openi(tmp_path / name) for name in ("xml", ARCHIVE_NAME))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (xml(1, findings="Norm\udcff".encode("utf-8", "surrogatepass").decode("latin-1")), None),
        (xml(1).replace(b"heart", b"he\xe4rt"), "bad_encoding"),
        (xml(1)[:-9], "invalid_record"),
        (b"<html/>", "invalid_record"),
        (xml(1, findings="Normal. " * (MAX_BYTES // 8)), "report_too_long"),
        (xml(1, findings="", impression=""), None),
    ],
)
def test_what_is_no_report_is_set_aside(tmp_path, content, reason):
    (tmp_path / "1.xml").write_bytes(content)
    (tmp_path / "2.xml").write_bytes(xml(2))
    quality = QualityLog()
    reports = list(read_openi(tmp_path, quality))
    assert [entry.reason for entry in quality.entries] == ([reason] if reason else [])
    assert len(reports) == (1 if reason else 2)
    assert quality.examined["reports"] == 2


def test_paths_and_entities_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="no report"):
        list(read_openi(tmp_path, QualityLog()))
    with pytest.raises(UserError, match="No such file"):
        list(read_openi(tmp_path / "missing.tgz", QualityLog()))
    whole = archive({f"{number}.xml": xml(number) for number in range(50)})
    for broken in (whole[:40], whole[:-40], whole[:600] + b"\xff" * 40 + whole[640:]):
        (tmp_path / "broken.tgz").write_bytes(broken)
        with pytest.raises(UserError, match="not a whole archive"):
            list(read_openi(tmp_path / "broken.tgz", QualityLog()))
    # Ten times ten times ...: no document has entities of its own
    grown = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    entities = f'<!ENTITY a0 "lol">{grown}'
    text = f'<!DOCTYPE x [{entities}]><x><uId id="CXR1"/><AbstractText>&a11;</AbstractText></x>'
    with pytest.raises(Unusable, match="entities of its own") as verdict:
        parse_openi(text.encode(), "bomb.xml")
    assert verdict.value.reason == "invalid_record"


def test_one_name_in_two_folders_of_an_archive_is_two_reports(tmp_path):
    files = {"a/1.xml": xml(1), "b/1.xml": xml(2), "c/1.xml": xml(1), "../1.xml": xml(3)}
    (tmp_path / ARCHIVE_NAME).write_bytes(archive(files, folder=""))
    quality = QualityLog()
    reports = list(read_openi(tmp_path / ARCHIVE_NAME, quality))
    assert [report.report_id for report in reports] == ["CXR1", "CXR2"]
    found = [(entry.reason, entry.where) for entry in quality.entries]
    assert found == [("unsafe_member", "../1.xml"), ("duplicate_id", "c/1.xml")]
    assert quality.examined["reports"] == 4


def test_reports_that_would_fill_the_memory(tmp_path, monkeypatch):
    """As many as a bomb has: each of them small, and two megabytes altogether."""
    text = bytes(MAX_BYTES // 2)
    path = tmp_path / ARCHIVE_NAME
    path.write_bytes(archive({f"{number}.xml": text for number in range(1_500)}))
    assert path.stat().st_size < 2_000_000
    with pytest.raises(UserError, match="times as many bytes come out"):
        list(read_openi(path, QualityLog()))
    monkeypatch.setattr(openi, "_MAX_TOTAL", 3 * len(xml(1)))
    path.write_bytes(archive({f"{number}.xml": xml(number) for number in range(1, 5)}))
    with pytest.raises(UserError, match="reports of more than"):
        list(read_openi(path, QualityLog()))


@pytest.mark.parametrize("encoding", ["utf-32", "utf-7", "cp037", "no-such", "shift_jis"])
def test_other_encodings_are_set_aside(tmp_path, encoding):
    declared = xml(1).replace(b'encoding="utf-8"', f'encoding="{encoding}"'.encode())
    (tmp_path / "1.xml").write_bytes(declared)
    (tmp_path / "2.xml").write_bytes(xml(2).decode().encode("utf-32"))
    (tmp_path / "3.xml").write_bytes(xml(3))
    quality = QualityLog()
    assert [report.report_id for report in read_openi(tmp_path, quality)] == ["CXR3"]
    assert [entry.reason for entry in quality.entries] == ["bad_encoding"] * 2


def test_the_real_collection():
    folder = Path(os.environ.get("CXRJAX_OPENI", _ROOT / "data" / "downloads"))
    wheels = [folder] if folder.is_file() else sorted(folder.glob("torchxrayvision-1.5.7-*.whl"))
    if not wheels:
        pytest.skip("needs the wheel of torchxrayvision==1.5.7 in data/downloads or $CXRJAX_OPENI")
    quality = QualityLog()
    reports = list(read_openi(wheels[0], quality))
    assert (len(reports), quality.entries) == (3955, [])
    assert sum(not (report.findings or report.impression) for report in reports) == 28
    assert len({report.report_id for report in reports}) == 3955
