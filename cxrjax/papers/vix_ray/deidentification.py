"""A look for what may tell who a patient is, in Vietnamese and English text (section 3.1).

A check, no promise: it finds what is written like a name, a date, an address, a phone or a record
number. Age and sex are meant to be there.
"""

import dataclasses
import re
import unicodedata

_UPPER = "A-ZÀ-ÖØ-ÞĂĐĨŨƠƯẠ-Ỹ"  # with the next set, what Vietnamese is written with
_CAPITAL = rf"(?:(?![ạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ])[{_UPPER}]\w*)"
_CAPITALS = rf"{_CAPITAL}(?:[ ]{_CAPITAL}){{1,4}}"
# The commonest family names that are not also common words, as Cao (high) and Hồ (Hồ sơ: file) are.
_FAMILIES = (
    "Nguyễn|Trần|Lê|Phạm|Huỳnh|Hoàng|Phan|Vũ|Võ|Đặng|Bùi|Đỗ|Ngô|Đoàn|Trịnh|Đinh|Trương|Lương|"
    "Vương|Quách|Nguyen|Tran|Pham|Huynh|Hoang|Dang|Bui"
)
_HONORIFIC = (
    r"(?:(?i:bệnh nhân|bệnh nhi|bác sĩ|bác sỹ|họ tên|họ và tên|tên là|tên|ông|bà|anh|chị|cháu|cụ)|"
    r"BN|BS\.?|Bs\.?|ThS\.?|TS\.?|PGS\.?|GS\.?|KTV|Mr\.?|Mrs\.?|Ms\.?|Dr\.?|"
    r"(?i:doctor|patient|name))"
)
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:19|20)\d\d"
_ENGLISH_MONTH = (
    r"(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_RECORD = (
    r"(?i:mã (?:số )?(?:bệnh nhân|bệnh án|hồ sơ|y tế|bn|ba)|số (?:bệnh án|hồ sơ|vào viện|bhyt|"
    r"cmnd|cccd|lưu trữ)|bhyt|cmnd|cccd|mrn|pid|patient id|record (?:number|no\.?)|accession)"
)

# Kind -> patterns; the match, or a name's group 1, is what was found. What an earlier kind found is
# not found again: streets bear names of people.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "address": (
        r"(?i:địa chỉ|thường trú|nơi ở|address)[ ]*:?[ ]*\w[^.;\n]*",
        rf"(?<!\w)(?i:số nhà|đường|phố|phường|quận|huyện|xã|thôn|ấp|tỉnh|thành phố|tp\.?|ngõ|hẻm)"
        rf"[ ](?!Kerley)(?:\d+\w*|{_CAPITAL}(?:[ ]{_CAPITAL})*)",
        rf"(?<!\w)\d+[ ](?:{_CAPITAL}[ ]){{1,3}}"
        r"(?:Street|St|Road|Rd|Avenue|Ave|Ward|District)(?!\w)",
    ),
    "name": (
        rf"(?<!\w){_HONORIFIC}[ ]*:?[ ]+({_CAPITALS})",
        rf"(?<!\w)((?:{_FAMILIES})(?:[ ]{_CAPITAL}){{1,4}})(?!\w)",
        # A form filled in block letters.
        rf"(?<!\w)((?:{_FAMILIES.upper()})(?:[ ][{_UPPER}]{{2,}}){{1,4}})(?!\w)",
    ),
    "date": (
        # Two numbers alone are as often a ratio or a rib of two; a year makes it a date.
        rf"(?<![\d./-]){_DAY}([/.-]){_MONTH}\1(?:{_YEAR}|\d\d)(?![\d/-])",
        rf"(?<![\d./-]){_YEAR}([/.-]){_MONTH}\1{_DAY}(?![\d/-])",
        rf"(?i:ngày)[ ]{_DAY}(?:[ ](?i:tháng)[ ]{_MONTH}|[/.-]{_MONTH})",
        rf"(?i:tháng)[ ]{_MONTH}[ /.-]+(?:(?i:năm)[ ])?{_YEAR}",
        rf"(?i:năm(?: sinh)?|sinh năm|born(?: in)?)[ ]*:?[ ]*{_YEAR}",
        rf"(?<!\d){_DAY}(?:st|nd|rd|th)?[ ]{_ENGLISH_MONTH},?[ ]{_YEAR}",
        rf"(?<!\w){_ENGLISH_MONTH}[ ]{_DAY}(?:st|nd|rd|th)?,?[ ]{_YEAR}",
    ),
    "phone": (
        r"(?<![\d.,])(?:\+?84|0)[ .-]?(?:[35789]\d|2\d)\d?(?:[ .-]?\d){6,7}(?![\d,]*\d)",
        r"(?i:điện thoại|sđt|đt|phone|tel)\.?[ ]*:?[ ]*\+?\d[\d .-]{5,}\d",
    ),
    "email": (r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",),
    "record_number": (
        rf"(?<!\w){_RECORD}[ ]*[:#]?[ ]*(?=[A-Z0-9./-]*\d)[A-Z0-9][A-Z0-9./-]{{3,}}",
        # Nothing that is measured on a radiograph has so many digits.
        r"(?<![\d.,])\d{8,}(?![\d.,]*\d)",
    ),
}
KINDS = tuple(_PATTERNS)
REDACTED = "___"  # as MIMIC-CXR's reports have it
_COMPILED = {kind: [re.compile(p) for p in patterns] for kind, patterns in _PATTERNS.items()}
# Capitalised words that follow "bệnh nhân" or stand for a family name and are no one's name.
_NO_NAMES = re.compile(
    r"^(?:Nam|Nữ|Không|Có|Bị|Chụp|Xquang|X-quang|Cho|Hình|Bóng|Tim|Phổi|Cao tuổi|Cao Tuổi)\b"
)


@dataclasses.dataclass(frozen=True)
class Identifier:
    """Text that may identify a person: its kind, a key of `KINDS`, and its span."""

    kind: str
    start: int
    end: int


def find_identifiers(text: str) -> list[Identifier]:
    """Returns what may identify a person, in order of place.

    Args:
        text: any Unicode form; places are those of its form NFC.
    """
    text = unicodedata.normalize("NFC", text)
    found: list[Identifier] = []
    covered = bytearray(len(text))
    for kind, patterns in _COMPILED.items():
        for pattern in patterns:
            for match in pattern.finditer(text):
                group = 1 if kind == "name" else 0
                start, end = match.span(group)
                if kind == "name" and _NO_NAMES.match(text[start:end]):
                    continue
                if not any(covered[start:end]):
                    covered[start:end] = b"\1" * (end - start)
                    found.append(Identifier(kind, start, end))
    return sorted(found, key=lambda identifier: identifier.start)


def redact(text: str) -> tuple[str, list[str]]:
    """Puts `REDACTED` in the place of what may identify a person.

    Returns:
        the text in Unicode's form NFC; the kinds of what was in it.
    """
    found = find_identifiers(text)
    text = unicodedata.normalize("NFC", text)
    for identifier in reversed(found):
        text = f"{text[: identifier.start]}{REDACTED}{text[identifier.end :]}"
    return text, [identifier.kind for identifier in found]
