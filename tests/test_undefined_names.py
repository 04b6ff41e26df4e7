"""No name that is defined nowhere: what ruff finds, but for the axes that jaxtyping writes as text.

To linters `Float[np.ndarray, "rows"]` looks like a reference to `rows`, so that their rule (F821)
is off in pyproject.toml.
"""

import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]


def undefined_names(folder):
    """`file:line: line` of each name outside of strings that ruff knows no definition of."""
    asked = ["check", "--isolated", "--select=F821", "--output-format=json", "--exit-zero", "."]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *asked],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for problem in json.loads(done.stdout):
        path, at = Path(problem["filename"]), problem["location"]
        place = at["row"], at["column"] - 1
        text = path.read_text(encoding="utf-8")
        strings = (
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.STRING
        )
        if not any(token.start <= place < token.end for token in strings):
            line = text.splitlines()[at["row"] - 1].strip()
            found.append(f"{path.relative_to(folder)}:{at['row']}: {line}")
    return found


def test_every_name_is_defined():
    assert undefined_names(ROOT) == []


def test_an_undefined_name_is_noticed(tmp_path):
    (tmp_path / "a.py").write_text('def f(x: list["rows"]):\n    return workers\n')
    assert undefined_names(tmp_path) == ["a.py:2: return workers"]
