"""Runs the conformance suite against a harness that scores predictions.

    python bench/conformance/run.py
    python bench/conformance/run.py --harness='CMD {references} {predictions} {out}'

README.md has the protocol by which a command is run. Without --harness, `cxrjax.score` is run in
this process. Prints what disagrees; exits with 1 then.
"""

import argparse
import contextlib
import io
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_TOLERANCE = 1e-6
_Case = Mapping[str, Any]
# (benchmark, references, predictions, out, codec) -> exit code
Harness = Callable[[str, Path, Path, Path, str | None], int]


def load_suite() -> dict[str, Any]:
    """The suite: `version`, the lines of `perfect`, and `cases`."""
    return json.loads((HERE / "cases.json").read_text(encoding="utf-8"))


def written(case: _Case, perfect: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The bytes of a case's predictions file."""
    lines = list(case.get("lines", ()))
    if not lines:
        for name, fields in perfect.items():
            if name not in case.get("drop", ()):
                line = {"question_id": name, **fields, **case.get("change", {}).get(name, {})}
                lines.append(json.dumps({key: _expanded(value) for key, value in line.items()}))
        lines += case.get("add", ())
    if case.get("order") == "reversed":
        lines.reverse()
    newline = case.get("newline", "\n")
    text = newline.join(lines) + (newline if lines and case.get("final_newline", True) else "")
    return (case.get("prefix", "") + text).encode() + b"".join(
        bytes.fromhex(added) + b"\n" for added in case.get("add_hex", ())
    )


def _expanded(value: Any) -> Any:
    if isinstance(value, dict) and "$repeat" in value:
        words, times = value["$repeat"]
        return words * times
    return value


def due_figures(case: _Case) -> dict[str, float]:
    """The figures that were agreed for a case, counted problems among them."""
    problems = case["expect"].get("problems", {})
    return case["expect"].get("strict", {}) | {f"problems/{k}": n for k, n in problems.items()}


def disagreements(case: _Case, code: int, out: Path, only: Collection[str] = ()) -> list[str]:
    """Returns a line for each deviation of a harness from the agreed results; `only`: figures."""
    agreed = case["expect"]
    if code != agreed["exit"]:
        return [f"exit code {code}, agreed: {agreed['exit']}"]
    if code:
        return []
    try:
        (protocols,) = json.loads((out / "metrics.json").read_text(encoding="utf-8")).values()
        figures = {name: figure["value"] for name, figure in protocols["strict"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"metrics.json of the protocol is missing or laid out otherwise: {error!r}"]
    return [
        f"{name}: {figures.get(name)}, agreed: {value}"
        for name, value in due_figures(case).items()
        if (not only or name in only)
        and (figures.get(name) is None or abs(figures[name] - value) > _TOLERANCE)
    ]


def run_case(
    case: _Case, perfect: Mapping[str, Any], harness: Harness, only: Collection[str] = ()
) -> list[str]:
    """Scores one case; returns what is not as agreed."""
    references = HERE / "references" / f"{case.get('references', 'findings')}.jsonl"
    benchmark = case.get("benchmark", "vindr_cxr_vqa")
    with tempfile.TemporaryDirectory() as folder:
        predictions, out = Path(folder, "system.jsonl"), Path(folder, "out")
        predictions.write_bytes(written(case, perfect))
        code = harness(benchmark, references, predictions, out, case.get("codec"))
        return disagreements(case, code, out, only)


def ours(
    benchmark: str, references: Path, predictions: Path, out: Path, codec: str | None = None
) -> int:
    """`cxrjax.score` in this process."""
    from cxrjax.commands.score import main
    from cxrjax.errors import UserError

    flags = [f"--benchmark={benchmark}", f"--references={references}", f"--out={out}"]
    flags += [f"--predictions={predictions}", "--resamples=0", "--floors=never"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main([*flags, *([f"--codec={codec}"] if codec else [])])
        except UserError:
            return 2
    return 0


def command(template: str) -> Harness:
    """A harness that is a command line with places to fill in."""

    def harness(
        benchmark: str, references: Path, predictions: Path, out: Path, codec: str | None = None
    ) -> int:
        places = {"benchmark": benchmark, "references": references, "predictions": predictions}
        places |= {"out": out, "codec": codec}
        words = [word for word in shlex.split(template) if codec or "{codec}" not in word]
        command = [word.format(**places) for word in words]
        return subprocess.run(command, capture_output=True, check=False).returncode

    return harness


def main() -> None:
    """Runs all cases, or those of --only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", metavar="CMD", help="default: cxrjax.score in this process")
    parser.add_argument("--only", action="append", metavar="NAME", help="a case; may be repeated")
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME", help="alone; may be repeated"
    )
    flags = parser.parse_args()
    suite = load_suite()
    harness = command(flags.harness) if flags.harness else ours
    cases = [
        case
        for case in suite["cases"]
        if (not flags.only or case["name"] in flags.only)
        and (not flags.figure or {*flags.figure} & {*due_figures(case)})
        and ("codec" not in case or not flags.harness or "{codec}" in flags.harness)
    ]
    failed = 0
    for case in cases:
        found = run_case(case, suite["perfect"], harness, flags.figure)
        failed += bool(found)
        for line in found:
            print(f"{case['name']}: {line} ({case['why']})")
    left = len(suite["cases"]) - len(cases)
    agreed = f"{len(cases) - failed} of {len(cases)} cases as agreed"
    print(f"version {suite['version']}: {agreed}, {left} not run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
