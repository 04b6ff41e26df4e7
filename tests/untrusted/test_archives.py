"""Zip, tar and gzip: what is read of them, and in which words the rest is refused."""

import gzip
import io
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile

import pytest

from cxrjax.errors import ForeignError
from cxrjax.untrusted import archives
from cxrjax.untrusted.archives import ZipArchive, open_gzip, read_tar

MOST = 100_000
FILES = {f"a/{number}.xml": b"<x>%d</x>" % number * (number + 1) for number in range(9)}


def zipped(files, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tar(members, form=tarfile.GNU_FORMAT):
    """A tar of (name, content) or of TarInfo without content, not yet packed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for one in members:
            name, content = (one, b"") if isinstance(one, tarfile.TarInfo) else one
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(name, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def read_zip(folder, content):
    (folder / "a.zip").write_bytes(content)
    with ZipArchive(folder / "a.zip", MOST) as archive:
        return {name: archive.read(name) for name in archive.names}, dict(archive.refused)


def read_all(content):
    return list(read_tar(gzip.compress(content, 1), MOST, ".xml"))


def header(size, kind, name="x"):
    """A block of a tar as `TarInfo` writes it, which says what it likes."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_is_sound_comes_out_as_it_went_in(tmp_path, method):
    assert read_zip(tmp_path, zipped({**FILES, "folder/": b""}, method)) == (FILES, {})
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        long = {"/".join(["b" * 90] * 4) + ".xml": b"x", "ế" * 60 + ".xml": b"", **FILES}
        members = read_all(tar((FILES if form == tarfile.USTAR_FORMAT else long).items(), form))
        assert {member.name: member.content for member in members}.items() >= FILES.items()
        assert len(members) == len(FILES) + 2 * (form != tarfile.USTAR_FORMAT)
        assert all(member.fault is None for member in members)


def test_names_that_lead_elsewhere(tmp_path, subtests):
    out = ("../x", "/x", "..\\x", "a/" * 2_000 + "x", "b" * 300)
    names = dict.fromkeys(out, "leads out") | {"C:/x": "drive", "a\nb": "control character"}
    for name, words in names.items():
        with subtests.test(name[:99]):
            read, refused = read_zip(tmp_path, zipped({name: b"", "good": b"x"}))
            assert read == {"good": b"x"}
            assert words in refused[name]
            (member,) = read_all(tar([(name + ".xml", b"x")]))
            assert words in member.fault and not member.content


def test_zips_of_cut_names_encrypted_members_and_archives(tmp_path):
    content = zipped({"good.json_evil": b"x"}).replace(b"good.json_", b"good.json\0")
    read, refused = read_zip(tmp_path, content)
    assert not read and len(refused) == 1
    content = bytearray(zipped({"a": b"x"}))
    content[content.index(b"PK\1\2") + 8] |= 1
    assert "encrypted" in read_zip(tmp_path, content)[1]["a"]
    inner = zipped(FILES)
    assert read_zip(tmp_path, zipped({"inner.zip": inner})) == ({"inner.zip": inner}, {})


def test_members_of_a_zip_that_are_not_read(tmp_path):
    a_link = zipfile.ZipInfo("link")
    a_link.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(a_link, b"/etc/passwd")
        archive.writestr("good", b"first")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("good", b"second")
        archive.writestr("bomb", bytes(4_000_000), zipfile.ZIP_DEFLATED)
        archive.writestr("large", bytes(range(256)) * 400, zipfile.ZIP_DEFLATED)
        archive.writestr("bzip2", b"x", zipfile.ZIP_BZIP2)
        archive.writestr("lzma", b"x", zipfile.ZIP_LZMA)
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())
    with ZipArchive(tmp_path / "a.zip", MOST) as archive:
        assert archive.names == ["good"]
        refused = dict(archive.refused)
    words = {"link": "a link", "good": "twice", "bomb": "expected at most", "bzip2": "method 12"}
    for name, expected in (words | {"large": "102400 bytes", "lzma": "method 14"}).items():
        assert expected in refused.pop(name)
    assert not refused


def test_members_over_each_other_or_belittled_by_the_directory(tmp_path):
    """As in Fifield's bombs: ten names of the directory lead to the same data."""
    content = zipped({"a": b"x" * 99})
    place, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = content[place:end] * 10
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 10, 10, len(entries), place, 0)
    (tmp_path / "a.zip").write_bytes(content[:place] + entries + tail)
    with pytest.raises(ForeignError, match="overlap"):
        ZipArchive(tmp_path / "a.zip", MOST)
    # What comes out is bounded by what the directory says, not by what is packed
    size, lie = (200 << 20).to_bytes(4, "little"), (1024).to_bytes(4, "little")
    content = zipped({"a": bytes(200 << 20)}).replace(size, lie)
    (tmp_path / "a.zip").write_bytes(content)
    tracemalloc.start()
    with ZipArchive(tmp_path / "a.zip", MOST) as archive, pytest.raises(ForeignError, match="CRC"):
        archive.read("a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_gzip_in_parts_and_what_follows_it():
    parts = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two")
    assert open_gzip(parts).read() == b"one two"
    assert open_gzip(parts + bytes(99)).read() == b"one two"
    damaged = bytearray(parts)
    damaged[12] ^= 8
    for content in (parts + b"more", parts[:-3], b"nonsense", bytes(damaged)):
        with pytest.raises(ForeignError, match="not a whole archive"):
            open_gzip(content).read()


def test_a_gzip_bomb_ends_early(monkeypatch):
    monkeypatch.setattr(archives, "FREE", 1_000_000)
    bomb = gzip.compress(bytes(50_000_000), 1)
    out = open_gzip(bomb)
    read = 0
    with pytest.raises(ForeignError, match="more than 100 times"):
        while content := out.read(65_536):
            read += len(content)
    assert read < 150 * len(bomb)
    text = b"p10000032,s50414267,True,%d\n"
    table = b"".join(text % number for number in range(60_000))
    assert open_gzip(gzip.compress(table)).read() == table


def test_links_large_members_and_sparse_files_of_a_tar():
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        bad, good = read_all(tar([link("bad.xml", kind), ("good.xml", b"x")]))
        assert "link or device" in bad.fault
        assert good == ("good.xml", b"x", None)
    bad, good = read_all(tar([("bad.xml", bytes(MOST + 1)), ("good.xml", b"x")]))
    assert "expected at most" in bad.fault and not bad.content
    assert good.content == b"x"
    old = header(5, tarfile.GNUTYPE_SPARSE, "a.xml")
    new = header(30, tarfile.XHDTYPE) + b"22 GNU.sparse.major=1\n".ljust(512, b"\0")
    for start in (old, new + header(0, tarfile.REGTYPE, "a.xml")):
        with pytest.raises(ForeignError, match="sparse"):
            read_all(start + bytes(10_240))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_headers_without_end(kind):
    """One of a GiB, and ten thousand of nothing: none is held, and nothing calls itself."""
    with pytest.raises(ForeignError, match="headers of a member"):
        read_all(header(2**30, kind) + bytes(2**20))
    with pytest.raises(ForeignError, match="headers of a member"):
        read_all(header(0, kind) * 10_000)


def test_a_tar_that_is_damaged_is_not_taken_for_one_that_ends():
    whole = tar(FILES.items())
    end = len(whole.rstrip(b"\0"))
    for broken in (
        whole[:1024] + b"\xff" * 512 + whole[1536:],  # a header
        whole[:1024] + bytes(512) + whole[1536:],  # nothing where a header was
        whole[: end + 10],
        whole[:1024],
        whole + b"more",
        header(2**32, tarfile.REGTYPE, "a.txt") + whole,
    ):
        with pytest.raises(ForeignError, match="not a whole archive"):
            read_all(broken)


def test_a_directory_and_a_tar_of_too_many_members(monkeypatch, tmp_path):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 8)
    with pytest.raises(ForeignError, match="more than 8 members"):
        read_all(tar(FILES.items()))
    (tmp_path / "a.zip").write_bytes(zipped(FILES))
    monkeypatch.setattr(archives, "MOST_MEMBERS", 8)
    with pytest.raises(ForeignError, match="9 members; at most 8"):
        ZipArchive(tmp_path / "a.zip", MOST)
    monkeypatch.setattr(archives, "MOST_DIRECTORY", 100)
    with pytest.raises(ForeignError, match="directory of more than 100"):
        ZipArchive(tmp_path / "a.zip", MOST)


def test_archives_that_are_damaged_anywhere(tmp_path):
    """Cut, overwritten, doubled: read or refused in words, in a moment."""
    rng = random.Random(0)
    sources = {"zip": zipped(FILES), "tar": tar(FILES.items(), tarfile.PAX_FORMAT)}
    for kind, whole in sources.items():
        for _ in range(400):
            content = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                place = rng.randrange(len(content))
                match rng.randrange(4):
                    case 0:
                        content[place] = rng.randrange(256)
                    case 1:
                        content[place : place + rng.choice([2, 4, 8])] = b"\xff" * 4
                    case 2:
                        del content[place : place + rng.randrange(600)]
                    case 3:
                        content[place:place] = content[place : place + 512]
            start = time.perf_counter()
            try:
                if kind == "zip":
                    read_zip(tmp_path, content)
                else:
                    read_all(bytes(content))
            except ForeignError:
                pass
            assert time.perf_counter() - start < 2


@pytest.mark.parametrize(("noise", "is_read"), [(0, False), (10_000, False), (20_000, True)])
def test_a_member_of_a_zip_may_shrink_to_a_two_hundredth(tmp_path, noise, is_read):
    """Zeros shrink to a thousandth; random bytes among them do not shrink."""
    content = random.Random(0).randbytes(noise).ljust(3_000_000, b"\0")
    (tmp_path / "a.zip").write_bytes(zipped({"a": content}))
    with ZipArchive(tmp_path / "a.zip", most=4_000_000) as archive:
        assert archive.names == (["a"] if is_read else [])
        assert [("at most 200 times" in why) for _, why in archive.refused] == [True] * (
            not is_read
        )
