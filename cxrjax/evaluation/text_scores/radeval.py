"""Metrics of the package RadEval 2.2.1 (github.com/jbdel/RadEval), with weights on disk.

RadGraph F1, CheXbert's F1, RaTEScore, GREEN and SRR-BERT, as that package computes them; it needs
PyTorch, transformers 5 and the packages that its weights were trained with. Nothing is downloaded
and no text leaves this machine. It was never run with weights here: tests cover its interface.

An answer without words is worth 0 in metrics of single answers, and is not passed to them.
"""

import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from cxrjax.errors import UserError, first_line, optional
from cxrjax.evaluation.figures import share
from cxrjax.files import read_packaged
from cxrjax.metrics.bootstrap import Columns, Estimate, Figure

# The RadGraph of 2.2.1 imports its own parts by the package's earlier name.
_OLD_NAME = "sys.modules['RadEval'] = radeval"
_REMEDY = (
    "pip install radeval==2.2.1 (it brings PyTorch: an environment of its own is best), or leave "
    "--radeval out"
)


def figure_titles() -> dict[str, str]:
    """Returns figure -> its title in tables."""
    return {
        f"radeval/{key}": title
        for metric in _table().values()
        for key, title in metric["figures"].items()
    }


class _Started(NamedTuple):
    name: str
    evaluate: Any  # radeval.RadEval of this metric
    figures: Sequence[str]
    each: bool


class RadEvalScorer:
    """Scores pairs of texts.

    Args:
        names: sections of radeval.toml.

    Attributes:
        version: of the package; None where it does not say.

    Raises:
        UserError: an unknown name, or the package or a metric's weights are not here.
    """

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in _table()]
        if unknown:
            raise UserError(
                f"--radeval={','.join(names)}: no {unknown[0]!r}; expected "
                f"{', '.join(_table())}, one or several with commas"
            )
        package = _package()
        try:
            self.version: str | None = importlib.metadata.version("radeval")
        except importlib.metadata.PackageNotFoundError:
            self.version = None
        self.names = list(dict.fromkeys(names))
        self._started = [_start(package, name) for name in self.names]

    def __call__(
        self, pairs: Sequence[tuple[str, str]]
    ) -> tuple[Columns, dict[str, Figure | Estimate]]:
        """Returns columns of the (answer, reference) pairs, and their figures.

        Raises:
            UserError: a metric fails, or returns another form than its version does.
        """
        columns: dict[str, np.ndarray] = {"radeval/asked": np.ones(len(pairs))}
        figures: dict[str, Figure | Estimate] = {}
        worded = [bool(one.strip() and two.strip()) for one, two in pairs]
        for metric in self._started:
            asked = [p for p, w in zip(pairs, worded, strict=True) if w or not metric.each]
            found = _evaluated(metric, asked) if asked else {}
            for key in metric.figures:
                name = f"radeval/{key}"
                if metric.each:
                    columns[name] = np.zeros(len(pairs))
                    columns[name][worded] = found.get(key, [])
                    figures[name] = share(name, "radeval/asked")
                else:
                    figures[name] = Estimate(found.get(key), None, None, len(pairs))
        return columns, figures


def _table() -> Mapping[str, Any]:
    return read_packaged(str(__package__), "radeval.toml")


def _package() -> ModuleType:
    # Read at the import of its library, which other parts may have imported already.
    os.environ["HF_HUB_OFFLINE"] = "1"
    if "huggingface_hub" in sys.modules:
        from huggingface_hub import constants

        constants.HF_HUB_OFFLINE = True
    package = optional("radeval", "", _REMEDY)
    sys.modules["RadEval"] = package  # `_OLD_NAME`
    return package


def _start(package: ModuleType, name: str) -> _Started:
    metric = _table()[name]
    try:
        evaluate = package.RadEval(metrics=[name], per_sample=metric["each"], show_progress=False)
    except ImportError as error:
        raise UserError(f"RadEval's {name} lacks a package ({_told(error)}): {_REMEDY}") from None
    except Exception as error:  # whatever its libraries raise
        fetch = f"import sys, radeval; {_OLD_NAME}; radeval.RadEval(metrics=['{name}'])"
        raise UserError(
            f"RadEval's {name} cannot be started ({_told(error)}): its weights must be on this "
            f'machine; `python -c "{fetch}"` fetches them, or leave it out of --radeval'
        ) from None
    return _Started(name, evaluate, tuple(metric["figures"]), metric["each"])


def _evaluated(metric: _Started, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The metric's figures: a list of numbers each, or one number."""
    answers, references = map(list, zip(*pairs, strict=True))
    try:
        given = metric.evaluate(refs=references, hyps=answers)
        found = {key: np.asarray(given[key], np.float64) for key in metric.figures}
        expected = (len(pairs),) if metric.each else ()
        if any(values.shape != expected for values in found.values()):
            raise ValueError(f"not a number for each of {len(pairs)} texts")
        if not all(np.isfinite(values).all() for values in found.values()):
            raise ValueError("a number that is not finite")
    except Exception as error:  # whatever its libraries raise
        raise UserError(
            f"RadEval's {metric.name} failed ({_told(error)}): leave it out of --radeval, or "
            "install 2.2.1, which is what is read here"
        ) from None
    return {key: values.tolist() for key, values in found.items()}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:300]
