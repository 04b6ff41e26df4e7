"""A data set as one object, found through entry points.

An installed package declares its data sets in the group `cxrjax.papers`, each under the name that
its records carry and that `build --dataset` takes:

    entry_points={"cxrjax.papers": ["my_set = my_package:MY_SET"]}

cxrjax declares its own in the same way. The module of an entry point should be quick to import:
lists of data sets read it, and a `Paper` names its parts as "module:attribute" instead.
"""

import dataclasses
import functools
import importlib.metadata
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

from cxrjax.errors import UserError

GROUP = "cxrjax.papers"


@dataclasses.dataclass(frozen=True)
class Paper:
    """A data set: terms of its use, and places of its parts ("module:attribute")."""

    name: str  # as the entry point has it
    _: dataclasses.KW_ONLY
    title: str = ""  # the data set's name in results; "" where no record carries this name
    licence: str = ""  # of images, labels and texts
    terms: str = ""  # address of the terms
    # Its content may not be passed on, not to a language model's provider either.
    credentialed: bool = True
    # What is simulated, printed beside every figure; "" where everything is a patient's.
    made: str = ""
    help: str = ""  # line of `build --help`
    builder: str = ""  # subclass of `Builder`; "" where `build` has nothing to do
    # Names of `score --benchmark`, each with its `Benchmark`.
    benchmarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Box format of the answers' texts, a key of `cxrjax.codecs.CODECS`.
    record_codec: str = "vindr_px"
    boxes_in_text: bool = True  # answers write their boxes into the text
    classes: str = ""  # the only labels of its records, a sequence; "": any label
    # Class -> the classes above and below it, which are not denied where it is marked
    # (`cxrjax.records_io.gate`); a function. "": denials are not compared.
    related: str = ""
    check_record: str = ""  # record -> contradictions in it
    check_study: str = ""  # records of one image -> contradictions between them
    # (records, quality log, name of their file): checks of their form, in place of those that
    # `review --check` has for any records.
    check_file: str = ""
    review: str = ""  # module that reads tables of readers' boxes and releases, for `review`
    # Description of its TFDS data set; "" where it has no TFDS data set of its own name.
    tfds: str = ""
    write_shards_tfds: str = ""  # (shards, out, image root) -> folder of the TFDS data set

    def __str__(self) -> str:
        passed_on = "; not to be passed on" if self.credentialed else ""
        return f"{self.title} ({self.licence}{passed_on}; {self.terms})"

    def part(self, field: str) -> Any:
        """Imports a part; None where the data set has none.

        Args:
            field: a name in `Attributes`.
        """
        place = getattr(self, field)
        return load_part(place) if place else None


@functools.cache
def load_part(place: str) -> Any:
    """Imports "module:attribute"."""
    return pkgutil.resolve_name(place)


@functools.cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for one in sorted(importlib.metadata.entry_points(group=GROUP)):
        if (other := found.setdefault(one.name, one)) is not one:
            both = f"{other.value} and {one.value}"
            raise UserError(f"data set {one.name!r} is declared twice: {both}; uninstall one")
    return found


@functools.cache
def find_paper(name: str) -> Paper:
    """Returns the data set of a name.

    Raises:
        UserError: no installed package declares it; lists the names that there are.
    """
    if name not in _entry_points():
        known = ", ".join(_entry_points()) or "none: is cxrjax installed (pip install -e .)?"
        raise UserError(f"data set {name!r} is not known; installed: {known}")
    paper = _entry_points()[name].load()
    if not isinstance(paper, Paper) or paper.name != name:
        raise UserError(f"entry point {_entry_points()[name].value}: expected the Paper {name!r}")
    return paper


def load_papers() -> list[Paper]:
    """Returns all data sets of the installed packages, by name."""
    return [find_paper(name) for name in _entry_points()]


def record_dataset(name: str) -> str:
    """Returns the name where records may carry it, for fields of records.

    Raises:
        ValueError: no installed package declares such records.
    """
    if name not in _entry_points() or not find_paper(name).title:
        known = ", ".join(paper.name for paper in load_papers() if paper.title)
        raise ValueError(f"no installed package has a data set {name!r}; expected one of {known}")
    return name


def benchmark_places() -> dict[str, str]:
    """Name of a benchmark -> its place, of all data sets."""
    return {name: place for paper in load_papers() for name, place in paper.benchmarks.items()}


def load_benchmark(name: str) -> Any:
    """Imports the `Benchmark` of a name.

    Raises:
        UserError: there is none; lists the benchmarks that there are.
    """
    places = benchmark_places()
    if name not in places:
        raise UserError(f"benchmark={name!r}: expected one of {', '.join(places)}")
    return load_part(places[name])


def closed_classes(dataset: str) -> tuple[str, ...]:
    """The only labels that records of a data set may have; () where any may be."""
    return tuple(find_paper(dataset).part("classes") or ())


def data_terms(datasets: Iterable[str]) -> dict[str, Paper]:
    """Data set -> its terms, of those of the names that are known."""
    known = (find_paper(name) for name in datasets if name in _entry_points())
    return {paper.name: paper for paper in known if paper.title}


def terms_json(datasets: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the data sets' terms in the form that score.json has."""
    fields = ("title", "licence", "terms", "credentialed", "made")
    return {
        name: {field: getattr(paper, field) for field in fields if field != "made" or paper.made}
        for name, paper in data_terms(datasets).items()
    }


def what_is_made(datasets: Iterable[str]) -> str:
    """Names what of the data sets is simulated, for a line beside every figure; "": nothing."""
    return "; ".join(dict.fromkeys(one.made for one in data_terms(datasets).values() if one.made))


def about_terms(datasets: Iterable[str]) -> str:
    """The line on the terms of a result's data sets; "" where none is known."""
    terms = "; ".join(map(str, data_terms(datasets).values()))
    return f"Data: {terms}." if terms else ""
