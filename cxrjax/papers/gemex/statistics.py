"""Counts of what was built, beside Table 3 and Figures 4 to 7 of the paper."""

import collections
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from cxrjax.papers.gemex.choices import chance
from cxrjax.papers.gemex.construct.questions import MAX_QUESTIONS
from cxrjax.papers.gemex.dialogue import QUESTION_TYPES
from cxrjax.radiology_text.english import comparing_word
from cxrjax.records import QARecord
from cxrjax.records_io.statistics import Published, load_statistics, ratio

PAPER: dict[str, Published] = load_statistics(str(__package__))["published"]
SPLITS = ("train", "validation", "test")


class GemexStatistics:
    """Counts over records that pass by.

    Attributes:
        classes: class -> images of the test split (Figure 7).
        regions: region -> refined sentences (Figure 3).
    """

    def __init__(self) -> None:
        counter = collections.Counter
        self._reasons: collections.Counter[int] = counter()
        self._contents: dict[str, collections.Counter[str]] = collections.defaultdict(counter)
        self.classes: collections.Counter[str] = counter()
        self.regions: collections.Counter[str] = counter()
        self._questions: collections.Counter[tuple[str, str]] = counter()
        self._boxes: collections.Counter[tuple[str, str]] = counter()
        self._letters: collections.Counter[str] = counter()
        self._yes: collections.Counter[str] = counter()
        self._longitudinal: collections.Counter[str] = counter()
        self._per_image: collections.Counter[str] = counter()
        self._offered: collections.Counter[tuple[str, str]] = counter()
        self._right: collections.Counter[tuple[str, str]] = counter()
        self._guessed: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)

    def watch(self, records: Iterable[QARecord]) -> Iterator[QARecord]:
        """Yields the records and counts them."""
        for record in records:
            self.add(record)
            yield record

    def add(self, record: QARecord) -> None:
        """Counts one record; boxes are those written in its answer."""
        split, kind = record.split, record.question_type
        self._questions[split, kind] += 1
        _, _, location = record.answer_text.rpartition("<location>")
        self._boxes[split, kind] += location.count("[") - 1 if "[[" in location else 0
        self._contents[split][record.content_type or "not stated"] += 1
        self._reasons[len(record.reason or "")] += 1
        self._per_image[record.image_id] += 1
        if kind == "single_choice" and isinstance(record.answer_key, str):
            self._letters[record.answer_key[:1]] += 1
        if kind == "closed_ended" and isinstance(record.answer_key, str):
            self._yes[record.answer_key.rstrip(".").lower()] += 1
        self._longitudinal[split] += comparing_word(record) is not None
        if kind != "open_ended" and record.answer_key:
            self._guess(record)

    def _guess(self, record: QARecord) -> None:
        """Counts how often options' words are right in training, and held-out questions that who
        knows nothing else answers; of closed ones the question's words."""
        kind, key = record.question_type, record.answer_key
        pairs = (choice.partition(":") for choice in record.choices or ())
        options = {letter.strip(): words.strip().lower() for letter, _, words in pairs}
        chosen = {*(key or ())}
        if not options:
            options = {"Yes": record.question.lower(), "No": f"not {record.question.lower()}"}
            chosen = {str(key).strip(".")}
        if record.split == "train":
            self._offered.update((kind, words) for words in options.values())
            self._right.update(
                (kind, words) for letter, words in options.items() if letter in chosen
            )
            return
        guess = 1 / len(options)
        shares = {
            letter: (self._right[kind, words] + guess) / (self._offered[kind, words] + 1)
            for letter, words in options.items()
        }
        best = {max(shares, key=lambda letter: shares[letter])}
        if kind == "multi_choice":
            best = {letter for letter, share in shares.items() if share > 0.5} or best
        self._guessed[kind].append((best == chosen, chance(kind, len(options))))

    def giveaways(self) -> dict[str, tuple[float, float, int]]:
        """Returns by question type the percentages that option words alone and a guess get right
        of held-out questions, and their number."""
        means = {kind: np.mean(found, axis=0) * 100 for kind, found in self._guessed.items()}
        return {
            kind: (float(guessed), float(luck), len(self._guessed[kind]))
            for kind, (guessed, luck) in means.items()
        }

    def values(self) -> dict[str, float | None]:
        """Name -> count or share in percent."""
        values: dict[str, float | None] = {}
        splits = sorted({split for split, _ in self._questions})
        for split in splits:
            for kind in QUESTION_TYPES:
                count, boxes = self._questions[split, kind], self._boxes[split, kind]
                values[f"{split}_questions/{kind}"] = count
                values[f"{split}_boxes/{kind}"] = boxes
                values[f"{split}_boxes_per_question/{kind}"] = ratio(boxes, count)
            values |= _percent(f"{split}_content_percent", self._contents[split])
            values[f"{split}_longitudinal_questions"] = self._longitudinal[split]
        values["answer_boxes"] = self._boxes.total()
        values |= _percent("single_choice_letter_percent", self._letters)
        values |= _percent("closed_ended_answer_percent", self._yes)
        fitting = sum(count for length, count in self._reasons.items() if 60 <= length <= 150)
        values["reason_characters_60_to_150_percent"] = ratio(100 * fitting, self._reasons.total())
        values["images_with_more_than_11_questions"] = sum(
            count > MAX_QUESTIONS for count in self._per_image.values()
        )
        for kind, (guessed, luck, _) in sorted(self.giveaways().items()):
            values |= {f"option_words_percent/{kind}": guessed, f"chance_percent/{kind}": luck}
        values |= _percent("test_class_percent", self.classes)
        values |= _percent("region_percent", self.regions)
        return values


# Label of a row of Table 3 -> its figure.
TABLE_3 = {
    f"{split}: {what} {kind}".strip(): f"{split}_{what}" + (f"/{kind}" if kind else "")
    for split in SPLITS
    for what in ("images", "questions", "boxes")
    for kind in ("", *QUESTION_TYPES)
}


def _percent(name: str, counts: Mapping[str, int]) -> dict[str, float | None]:
    total = sum(counts.values())
    return {f"{name}/{key}": ratio(100 * count, total) for key, count in sorted(counts.items())}
