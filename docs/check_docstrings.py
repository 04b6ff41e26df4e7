"""Checks the first words of docstrings; `make lint` runs it.

docs/docstring_openings.txt lists words that open no docstring of the package, bench, configs or
docs. Schemas of language models' answers (`Strict`) are exempt: their docstrings are part of cache
keys (tests/papers/test_language_model_keys.py).
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cxrjax", "bench", "configs", "docs")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def pattern(openings: str) -> re.Pattern[str]:
    """Compiles the list: a phrase a line, lines with # are comments."""
    lines = [line for line in openings.splitlines() if line and not line.startswith("#")]
    return re.compile(rf"(?:{'|'.join(map(re.escape, lines))})(?![\w'’-])")


def refused(source: str, name: str, openings: re.Pattern[str]) -> list[str]:
    """Returns a message for each docstring of a module that starts with a listed word."""
    found = []
    for node in ast.walk(ast.parse(source)):
        doc = (isinstance(node, _DOCUMENTED) and ast.get_docstring(node)) or ""
        match = openings.match(doc)
        is_schema = any(ast.unparse(base) == "Strict" for base in getattr(node, "bases", ()))
        if match and not is_schema:
            line = node.body[0].lineno  # type: ignore[attr-defined]
            found.append(
                f"{name}:{line}: docstring starts with {match[0]!r}; expected a verb in the third "
                "person or a noun"
            )
    return found


def main() -> None:
    """Prints what is refused; exit code 1 if anything is."""
    openings = pattern((ROOT / "docs/docstring_openings.txt").read_text(encoding="utf-8"))
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = [
        line
        for path in paths
        for line in refused(path.read_text("utf-8"), str(path.relative_to(ROOT)), openings)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
