"""The one builder: its order, what it refuses, and what it leaves when something fails."""

import json

import pytest

from cxrjax.errors import UserError
from cxrjax.records import Answer, read_records
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file
from cxrjax.records_io.statistics import Published
from tests.input_pipeline.conftest import make_record


def _record(number: int, split: str):
    names = {"image_id": f"i{number}", "question_id": f"q{number}"}
    return make_record(split=split, variables=None, answers=[], **names)


class Toy(Builder[SourceOptions]):
    """A question for every word of the source; the word `bad` is set aside."""

    dataset = "toy"
    options_class = SourceOptions

    def read(self):
        self.published = {"questions": Published(5, "Table 1")}
        self.steps = ["read"]
        return {"train": self._questions()}

    def _questions(self):
        for number, word in enumerate(self.options.source.read_text().split()):
            self.steps.append(word)
            if word == "bad":
                self.quality.set_aside("bad_box", word, "source.txt:1", "no area")
            else:
                yield _record(number, "train")

    def write_files(self, comparison):
        self.steps.append("files")
        assert not (self.options.out / "manifest.json").exists()
        (self.options.out / "own.txt").write_text(str(comparison["questions"]["difference"]))

    def describe(self):
        return {"source": describe_file(self.options.source)}

    def report(self):
        yield f"steps {len(self.steps)}"


@pytest.fixture
def toy(tmp_path):
    """`toy(text, **options)` -> a builder of the text."""

    def make(text: str, **options) -> Toy:
        (tmp_path / "source.txt").write_text(text)
        return Toy(SourceOptions(tmp_path / "source.txt", tmp_path / "out", **options))

    return make


def _json(builder: Toy, name: str):
    return json.loads((builder.options.out / name).read_text())


def test_everything_is_written_once_in_order_and_the_manifest_last(toy, capsys):
    builder = toy("a bad b")
    assert str(builder.options.out) in builder.build()
    assert builder.steps == ["read", "a", "bad", "b", "files"]
    assert capsys.readouterr().out == "steps 5\n"
    out = builder.options.out
    assert [r.question_id for r in read_records(out / "records/train.jsonl")] == ["q0", "q2"]
    assert len((out / "questions/train.jsonl").read_text().splitlines()) == 2
    assert (out / "own.txt").read_text() == "-3"
    manifest = _json(builder, "manifest.json")
    assert list(manifest) == ["cxrjax_version", "dataset", "source", "splits"]
    assert manifest["dataset"] == "toy" and manifest["splits"]["train"]["questions"] == 2
    assert manifest["source"]["path"] == "source.txt" and len(manifest["source"]["sha256"]) == 64
    assert _json(builder, "quality.json")["counts"]["bad_box"] == 1
    expected = {"value": 2, "paper": 5, "difference": -3, "note": "Table 1"}
    assert _json(builder, "statistics.json")["questions"] == expected


def test_strict_refuses_defects_when_all_is_written_and_tidied(toy, monkeypatch):
    left = []
    monkeypatch.setattr(Toy, "tidy", lambda builder: left.append(builder.options.out))
    builder = toy("a bad", strict=True)
    with pytest.raises(UserError, match=r"found with --strict: \{'bad_box': 1\}"):
        builder.build()
    assert left == [builder.options.out]
    assert _json(builder, "manifest.json")["splits"]["train"]["questions"] == 1
    toy("a b", strict=True).build()


def test_nothing_left_says_why_and_leaves_no_manifest(toy):
    toy("a").build()
    builder = toy("bad bad")
    with pytest.raises(UserError, match=r"'bad_box': 2\}; the first: source.txt:1: bad_box: no a"):
        builder.build()
    assert not (builder.options.out / "manifest.json").exists()


def test_a_folder_of_another_build_is_refused(toy):
    builder = toy("a")
    (builder.options.out / "records").mkdir(parents=True)
    (builder.options.out / "records" / "test.jsonl").write_text("")
    with pytest.raises(UserError, match="left by another build"):
        builder.build()


def test_a_folder_that_cannot_be_written_is_named(toy, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write: .*; choose another --out"):
        toy("a").build()


@pytest.mark.parametrize("options", [{"seed": -1}, {"processes": 0}])
def test_values_out_of_range(toy, options):
    with pytest.raises(UserError, match=f"--{next(iter(options))}="):
        toy("a", **options)


def test_quality_says_what_was_balanced_and_how(toy):
    """By split and class; of a question that nobody answers with yes or no, nothing."""

    def question(number, label, polarity):
        answer = Answer(text="...", labels=[label], polarity=polarity)
        return _record(number, "train").model_copy(update={"answers": [answer]})

    builder = toy("a")
    said = [("Mass", "pos"), ("Mass", "neg"), ("Mass", "neg"), ("Edema", "neg"), ("Edema", "unk")]
    asked = [question(number, *one) for number, one in enumerate(said)]
    builder.steps, builder.read = [], lambda: {"train": asked}
    builder.build()
    assert _json(builder, "quality.json")["balance"] == {
        "rule": "none: questions are those of the source",
        "train": {"Edema": {"yes": 0, "no": 1}, "Mass": {"yes": 1, "no": 2}},
    }
