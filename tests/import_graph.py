"""Imports of the repository's modules as a graph, and the files of tests that a change can reach.

`python -m tests.import_graph COMMIT` prints the test files that can reach a file that differs from
the commit; `make affected BASE=COMMIT` runs them.
"""

import argparse
import ast
import functools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cxrjax", "tests", "bench", "configs", "docs", "launch")
# A change of these can change any test.
OF_ALL = (
    *("setup.py", "pyproject.toml", "constraints.txt", "requirements/"),
    *("cxrjax/__init__.py", "tests/conftest.py"),
)
_MODULE = re.compile(r"(cxrjax|tests|bench)(\.\w+)+")


def imported(source: str) -> set[str]:
    """Returns the dotted names that a module's source imports, at the top or within functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def _strings(file: str) -> tuple[str, ...]:
    """Returns a file's strings that are no docstrings: commands are among them, and paths."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return tuple(
        node.value
        for node in constants
        if isinstance(node.value, str) and id(node) not in docstrings
    )


def _git(*words: str) -> list[str]:
    """Returns the lines that git prints.

    Raises:
        SystemExit: git ended otherwise than well.
    """
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"git {' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout.splitlines()


@functools.cache
def _files() -> frozenset[str]:
    listed = _git("ls-files", "--cached", "--others", "--exclude-standard")
    return frozenset(name for name in listed if (ROOT / name).is_file())


def _file_of(name: str) -> str | None:
    """Returns the file of a dotted name, which may end in a name within the module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length])
        for file in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
            if file in _files():
                return file
    return None


@functools.cache
def _below(file: str) -> frozenset[str]:
    """Files that a Python file imports or names, and its conftest files."""
    source = (ROOT / file).read_text(encoding="utf-8")
    names = imported(source)
    for text in _strings(file):
        names |= {match[0] for match in _MODULE.finditer(text)}
    found = {_file_of(name) for name in names} - {None}
    folder = Path(file).parent
    above = {f"{parent}/conftest.py" for parent in [folder, *folder.parents]}
    packages = {f"{parent}/__init__.py" for parent in [folder, *folder.parents]}
    found |= above if file.startswith("tests/") else packages - {"cxrjax/__init__.py"}
    return frozenset(found & _files())


def _readers(changed: str) -> set[str]:
    """Python files that read a file that is no module: by its name, its folder's or its ending."""
    path = Path(changed)
    words = {path.name, path.parent.name} - set(FOLDERS) - {""}
    named = re.compile("|".join(rf"(?<![\w.]){re.escape(word)}(?!\w)" for word in words))
    ending = f"*{path.suffix}"
    return {
        file
        for file in _files()
        if file.endswith(".py")
        and (path.suffix != ".md" or file.startswith("tests/"))  # pages are read by tests alone
        and any(named.search(text) or ending in text for text in _strings(file))
    }


def affected(changed: Iterable[str]) -> list[str]:
    """Returns the test files that can reach a changed file.

    A module reaches what it imports, also within functions, and the modules that its strings name
    (`python -m ...`); a file that is no module is reached by those that name it or its folder.
    """
    changed = set(changed)
    tests = {file for file in _files() if Path(file).name.startswith("test_")}
    tests = {file for file in tests if file.startswith("tests/") and file.endswith(".py")}
    if any(file.startswith(OF_ALL) for file in changed):
        return sorted(tests)
    for file in sorted(changed):
        if not file.endswith(".py") or file.startswith(("configs/", "docs/")):
            changed |= _readers(file)
    above: dict[str, set[str]] = {}
    for file in _files():
        if file.endswith(".py"):
            for other in _below(file):
                above.setdefault(other, set()).add(file)
    reached, waiting = set(changed), list(changed)
    while waiting:
        for file in above.get(waiting.pop(), set()) - reached:
            reached.add(file)
            waiting.append(file)
    return sorted(reached & tests)


def changed_since(commit: str) -> set[str]:
    """Returns the paths of files that differ from a commit, those not yet committed included."""
    new = _git("ls-files", "--others", "--exclude-standard")
    return {*_git("diff", "--name-only", "--no-renames", commit, "--"), *new}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.import_graph", description=__doc__)
    parser.add_argument("commit")
    print("\n".join(affected(changed_since(parser.parse_args().commit))))


if __name__ == "__main__":
    main()
