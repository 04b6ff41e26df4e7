"""What is flagged as identifying, and what looks like it and is not."""

import unicodedata

import pytest

from cxrjax.papers.vix_ray.deidentification import find_identifiers


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Bệnh nhân Nguyễn Văn An, 60 tuổi", "name"),
        ("BN Trần Thị Hoa chụp lại", "name"),
        ("họ tên: LÊ VĂN TÁM", "name"),
        ("BS. Phạm Minh Đức", "name"),
        ("Dr. John Smith", "name"),
        ("HUỲNH THỊ MAI", "name"),
        ("ngày 12/03/2021", "date"),
        ("ngày 5 tháng 6", "date"),
        ("12.03.21", "date"),
        ("on March 5, 2020", "date"),
        ("2021-03-12", "date"),
        ("sinh năm 1950", "date"),
        ("Địa chỉ: 12 Lê Lợi", "address"),
        ("phường Bến Nghé", "address"),
        ("quận 1", "address"),
        ("123 Main Street", "address"),
        ("0912345678", "phone"),
        ("+84 912 345 678", "phone"),
        ("ĐT: 024 3825 1234", "phone"),
        ("SĐT 0912.345.678", "phone"),
        ("mã bệnh nhân: BN12345", "record_number"),
        ("MRN: 00123456", "record_number"),
        ("số bệnh án 20/12345", "record_number"),
        ("cccd 001099012345", "record_number"),
        ("an.nguyen@example.org", "email"),
    ],
)
def test_flagged(text, kind):
    for form in ("NFC", "NFD"):
        found = find_identifiers(unicodedata.normalize(form, f"Bóng tim to. {text}."))
        assert [identifier.kind for identifier in found] == [kind], form


@pytest.mark.parametrize(
    "text",
    [
        "Bệnh nhân nam, 65 tuổi",
        "Bệnh nhân Nam 60 tuổi",
        "Bệnh nhân Không hợp tác",
        "20 tuổi 3 tháng",
        "nốt mờ 12x15mm",
        "kích thước 12.5 x 15.3 mm",
        "khoảng 10-12 mm",
        "2.5-3.0 cm",
        "số lượng 250 ml",
        "góc 30 độ",
        "đốt sống D5, D6 và T1",
        "T11-T12, L1",
        "chỉ số tim/lồng ngực 0,55",
        "tỷ lệ 1/2",
        "1/3 dưới phổi phải",
        "Tràn dịch màng phổi trái 2/3 phế trường",
        "xương sườn 2-3 bên trái",
        "cung sau xương sườn III",
        "Bóng tim to. Tổn thương phổi kẽ.",
        "HÌNH ẢNH TIM PHỔI BÌNH THƯỜNG",
        "CAO HUYẾT ÁP",
        "Hồ Sơ",
        "đường Kerley B hai đáy phổi",
        "đường thở thông thoáng",
        "Hội chứng Pancoast Tobias",
        "năm 2 lần",
    ],
)
def test_not_flagged(text):
    assert find_identifiers(text) == []


def test_places_are_those_of_the_text():
    text = "BN Trần Thị Hoa, 0912345678"
    found = find_identifiers(text)
    assert [text[f.start : f.end] for f in found] == ["Trần Thị Hoa", "0912345678"]
