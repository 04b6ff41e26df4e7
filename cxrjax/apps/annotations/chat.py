"""Chats that train models which answer in text: boxes in their answers, forms in `chat.toml`."""

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.apps.annotations import annotation as an
from cxrjax.apps.annotations.annotation import WORDS, Annotation, Shape
from cxrjax.apps.annotations.folder import Folder
from cxrjax.apps.annotations.json_formats import documents
from cxrjax.apps.annotations.json_paths import said_of
from cxrjax.errors import ForeignError
from cxrjax.files import read_packaged
from cxrjax.records_io.quality import Unusable
from cxrjax.untrusted.foreign_files import MIB
from cxrjax.untrusted.json_text import parse_json
from cxrjax.untrusted.names import shown, shown_value

_WORDS = read_packaged(str(__package__), "chat.toml")
_FORMS = [(re.compile(form["box"]), form) for form in _WORDS["form"]]
_LABEL, _ASKED, _IMAGE = (re.compile(_WORDS["marks"][key]) for key in ("label", "asked", "image"))
_LONGEST = 100_000  # characters of an answer
_TURNS = ("conversations", "messages")
_ASKING = ("human", "user", "system")


def kind_of(folder: Folder, path: Path) -> str:
    """ "chat" of a file whose first sample is a chat about an image, else ""."""
    first = next((one for _, one in documents(folder, path, MIB)), None)
    first = first[0] if isinstance(first, list) and first else first
    if not isinstance(first, dict):
        return ""
    if {"image", "prefix", "suffix"} <= first.keys():
        return "chat"
    turns: list[Any] = next((first[key] for key in _TURNS if isinstance(first.get(key), list)), [])
    return "chat" if turns and all(isinstance(turn, dict) for turn in turns) else ""


def read(folder: Folder, path: Path, said: an.Stated, found: an.Annotations) -> an.Entries:
    """Yields the entries of one file."""
    where = folder.where(path)
    for line, content in documents(folder, path):
        samples = [("", content)]
        if not line:
            listed = an.entries(content, "the file")
            samples = [(f": [{number}]", one) for number, one in enumerate(listed)]
        for place, sample in samples:
            yield from an.guarded(_sample(sample, where, line + place, said), where, line + place)


def _sample(sample: Any, where: str, place: str, said: an.Stated) -> an.Entries:
    if isinstance(sample, ForeignError):
        raise sample
    sample = an.fields(sample, "a sample")
    turns = list(_turns(sample))
    image = Annotation(_image(sample, turns), where, place)
    yield image
    asked = ""
    for is_question, text in turns:
        if is_question:
            match = _ASKED.search(text[-400:])
            asked = match[1] if match and match[1].lower() not in _WORDS["marks"]["vague"] else ""
            continue
        for read in _boxes(text, asked, said):
            yield an.attempt(image, place, read)


def _turns(sample: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yields (question or answer, text)."""
    if "suffix" in sample:
        yield True, str(sample.get("prefix", ""))
        if not isinstance(sample["suffix"], str):
            raise Unusable("invalid_record", f"suffix {shown_value(sample['suffix'])}, no text")
        yield False, sample["suffix"]
    for turn in next((sample[key] for key in _TURNS if isinstance(sample.get(key), list)), []):
        turn = an.fields(turn, "a turn")
        text = turn.get("value", turn.get("content"))
        for part in text if isinstance(text, list) else [{"text": text}]:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield turn.get("from", turn.get("role")) in _ASKING, part["text"]


def _image(sample: dict[str, Any], turns: list[tuple[bool, str]]) -> str:
    """The name of a sample's one image; Unusable if it has none, or several."""
    given = next((sample[key] for key in ("image", "images") if key in sample), None)
    names = list(given) if isinstance(given, list) else [given] * (given is not None)
    for key in _TURNS:
        for turn in sample.get(key) or [] if given is None else ():
            parts = turn.get("content") if isinstance(turn, dict) else None
            for part in parts if isinstance(parts, list) else ():
                kind = part.get("type") if isinstance(part, dict) else None
                names += [part.get(kind)] if kind in ("image", "image_url") else []
    if not names:
        names = [name for _, text in turns for name in _IMAGE.findall(text)]
    names = [one.get("url", one.get("path")) if isinstance(one, dict) else one for one in names]
    if len(names) != 1 or not isinstance(names[0], str):
        raise Unusable("invalid_record", f"images {shown_value(names)}; expected one a chat")
    return names[0]


def _boxes(text: str, asked: str, said: an.Stated) -> Iterator[Any]:
    """Yields a function for each box of an answer that gives its class and shape."""
    if len(text) > _LONGEST:
        raise Unusable("invalid_record", f"an answer of {len(text):,} characters")
    if listed := _objects(text):
        for one in listed:
            yield functools.partial(_of_json, one, asked, said)
        return
    found = (
        (form, list(pattern.finditer(text)))
        for pattern, form in _FORMS
        if any(sign in text for sign in form.get("needs", [""]))
    )
    nothing: tuple[dict[str, Any], list[re.Match[str]]] = ({}, [])
    form, matches = next((one for one in found if one[1]), nothing)
    if not matches:
        if any(sign in text for sign in _WORDS["marks"]["of_boxes"]):
            told = (
                f"{shown(text)}; expected four <loc> tokens and a class, or a box in another form"
            )
            raise Unusable("bad_box", told)
        return
    label, end = "", 0
    for match, after in zip(matches, [*matches[1:], None], strict=True):
        before, end = text[end : match.start()], match.end()
        if form["label"] == "behind":
            label = text[end : after.start() if after else None].partition("<")[0]
        elif labels := _LABEL.findall(before):
            label = labels[-1]
        elif form["label"] == "before":
            label = before.strip(" .,;:\n") or label
        named = label.strip(" ;,.\n") or asked
        yield functools.partial(_of_match, match, form, named, said)


def _objects(text: str) -> list[Any]:
    """Objects of JSON in an answer: a list of them, or one a line, whatever stands around."""
    if "{" not in text:
        return []
    starts = [at for at in (text.find("["), text.find("{")) if at >= 0]
    whole = text[min(starts, default=0) : max(text.rfind("]"), text.rfind("}")) + 1]
    for tried in ([whole], text.splitlines()):
        found: list[Any] = []
        for part in tried:
            with contextlib.suppress(ForeignError):
                value = parse_json(part.strip().rstrip(","))
                found += value if isinstance(value, list) else [value]
        keys = {an.plain(key) for one in found if isinstance(one, dict) for key in one}
        if keys.intersection(_WORDS["json"]["keys"]):
            return found
    return []


def _of_match(
    match: re.Match[str], form: dict[str, Any], label: str, said: an.Stated
) -> dict[str, Any]:
    numbers = an.numbers_of([float(one) / (form["bins"] or 1) for one in match.groups()], 4)
    if not form["bins"]:
        shape = Shape(numbers, "xyxy", "unclear", exact=False)
        return {"label": _named(label, said), "shape": shape}
    if form["order"] == "yxyx":
        numbers = (numbers[1], numbers[0], numbers[3], numbers[2])
    return {"label": _named(label, said), "shape": Shape(numbers, "xyxy", "fractions")}


def _of_json(one: Any, asked: str, said: an.Stated) -> dict[str, Any]:
    """Class and shape of {"bbox_2d": [x, y, x, y], "label": ...}; of Gemini's box_2d y is first."""
    one = an.fields(one, "a box")
    label = next((str(v) for k, v in one.items() if an.plain(k) in WORDS["columns"]["label"]), "")
    value = next((v for k, v in one.items() if an.plain(k) in _WORDS["json"]["keys"]), None)
    numbers = an.numbers_of(value if isinstance(value, list) else [], 4)
    shape = Shape(numbers, "xyxy", "unclear", exact=False)
    if "box_2d" in one:
        a, b, c, d = (number / 1000 for number in numbers)
        shape = Shape((b, a, d, c), "xyxy", "fractions")
    sure = an.confidence_of(said_of(one, "confidence"))
    return {"label": _named(label or asked, said), "shape": shape, "confidence": sure}


def _named(label: str, said: an.Stated) -> str:
    if not (said.label or label):
        raise Unusable("unknown_class", "no class beside the box; pass --label=NAME")
    return said.label or label
