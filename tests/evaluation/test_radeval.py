"""RadEval's metrics through its interface (2.2.1), by a module with that interface: no weights."""

import os
import sys
import types

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.records import write_records
from tests.evaluation import made

SAID = ["Pleural effusion.", "", "No effusion."]
TRUE = ["Pleural effusion.", "Cardiomegaly.", "Pleural effusion."]
# What 2.2.1 gives: for each text, or once for all.
EACH = {
    "radgraph": ["radgraph_simple", "radgraph_partial", "radgraph_complete"],
    "ratescore": ["ratescore"],
    "green": ["green"],
}
ONCE = {
    "f1chexbert": [
        f"f1chexbert_{classes}_{mean}_f1"
        for classes in ("5", "all")
        for mean in ("micro", "macro", "weighted")
    ],
    "srrbert": [f"srrbert_weighted_{name}" for name in ("f1", "precision", "recall")],
}


class RadEval:
    """Signature and manners of radeval.RadEval; a text is worth the words that it shares."""

    fault = None
    calls: list = []

    def __init__(
        self,
        metrics=None,
        openai_api_key=None,
        gemini_api_key=None,
        per_sample=False,
        detailed=False,
        show_progress=True,
        cache_dir=None,
    ):
        (self.name,) = metrics
        self.per_sample = per_sample
        if self.fault == "weights":
            raise OSError("We couldn't connect to the hub,\nand couldn't find them in the cache.")
        if self.fault == "package":
            raise ModuleNotFoundError("No module named 'medspacy'")
        assert sys.modules["RadEval"] is sys.modules["radeval"]

    def __call__(self, refs, hyps):
        assert isinstance(refs, list) and isinstance(hyps, list) and len(refs) == len(hyps)
        RadEval.calls.append((self.name, refs, hyps))
        worth = [float(ref == hyp) for ref, hyp in zip(refs, hyps, strict=True)]
        if self.fault == "short":
            worth = worth[1:]
        if self.name in EACH:
            assert self.per_sample
            return {key: worth for key in EACH[self.name]}
        assert not self.per_sample
        return dict.fromkeys(ONCE[self.name], sum(worth) / len(worth))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Records and answers, and the module in the package's place."""
    package = types.ModuleType("radeval")
    package.RadEval = type("RadEval", (RadEval,), {})
    RadEval.calls = []
    monkeypatch.setitem(sys.modules, "radeval", package)
    monkeypatch.setitem(sys.modules, "RadEval", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    records = [
        made.record_of(f"i{n}", labels=["Effusion"], dataset="custom", answer={"text": text})
        for n, text in enumerate(TRUE)
    ]
    write_records(tmp_path / "records.jsonl", records)
    made.write_lines(tmp_path / "said.jsonl", map(made.line_of, records, SAID))

    def run(radeval, benchmark="own"):
        metrics, _ = made.run_score(
            tmp_path, "said", benchmark=benchmark, radeval=radeval, resamples=9
        )
        return metrics["said"]["strict"]

    run.package = package.RadEval
    run.out = tmp_path / "out"
    return run


def test_its_figures_stand_in_the_tables(files, capsys):
    found = files("radgraph,f1chexbert,ratescore,green,srrbert")
    names = {name for name in found if name.startswith("radeval/")}
    assert names == {
        *(f"radeval/{key}" for keys in EACH.values() for key in keys),
        *(f"radeval/{key}" for key in ONCE["f1chexbert"] if "weighted" not in key),
        *(f"radeval/{key}" for key in ONCE["srrbert"]),
    }
    # One of three alike; an answer without words is worth 0 and not given to the package.
    ratescore = found["radeval/ratescore"]
    assert ratescore["value"] == pytest.approx(1 / 3) and ratescore["n"] == 3
    assert ratescore["ci_low"] is not None
    once = found["radeval/f1chexbert_5_micro_f1"]
    assert once == {"value": pytest.approx(1 / 3), "ci_low": None, "ci_high": None, "n": 3}
    asked = {name: hyps for name, _, hyps in RadEval.calls}
    assert asked["green"] == ["Pleural effusion.", "No effusion."]
    assert asked["f1chexbert"] == SAID
    printed = capsys.readouterr().out
    assert "## RadEval" in printed and "| RaTEScore | 0.333" in printed
    settings = made.read_json(files.out / "score.json")["radeval"]
    assert settings["metrics"] == ["radgraph", "f1chexbert", "ratescore", "green", "srrbert"]


def test_nothing_is_downloaded(files, monkeypatch):
    constants = types.ModuleType("huggingface_hub.constants")
    constants.HF_HUB_OFFLINE = False
    hub = types.ModuleType("huggingface_hub")
    hub.constants = constants
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    files("green")
    assert os.environ["HF_HUB_OFFLINE"] == "1" and constants.HF_HUB_OFFLINE is True


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("weights", r"green cannot be started \(OSError: We couldn't .* must be on this machine"),
        ("package", r"green lacks a package \(.*medspacy'\): pip install radeval==2.2.1"),
        ("short", r"green failed \(ValueError: not a number for each of 2 texts\).*2\.2\.1"),
    ],
)
def test_what_is_not_here_is_one_line(files, fault, told):
    files.package.fault = fault
    with pytest.raises(UserError, match=told) as raised:
        files("green")
    assert "\n" not in str(raised.value)
    assert not (files.out / "metrics.json").exists()


def test_the_package_and_the_benchmark_must_fit(files, monkeypatch):
    with pytest.raises(UserError, match="--radeval=green,crimson: no 'crimson'; expected radgraph"):
        files("green,crimson")
    with pytest.raises(UserError, match="--radeval: vindr_cxr_vqa has no use for one"):
        files("green", benchmark="vindr_cxr_vqa")
    monkeypatch.setitem(sys.modules, "radeval", None)
    with pytest.raises(UserError, match=r"radeval cannot be imported .*pip install radeval==2.2.1"):
        files("green")


def test_a_number_that_is_none_is_refused(files, monkeypatch):
    monkeypatch.setattr(files.package, "__call__", lambda self, refs, hyps: {"green": [np.nan] * 2})
    with pytest.raises(UserError, match="a number that is not finite"):
        files("green")
