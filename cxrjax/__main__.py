"""Runs a command: `cxrjax COMMAND ...` is `python -m cxrjax.COMMAND ...`.

cxrjax train --config=configs/vindr_lora.py:demo --workdir=runs/demo/train
cxrjax COMMAND --help
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parent
_USER_ERROR = 2
# `import` is a keyword of Python, so that no module can have its name.
_NAMES = {"import_annotations": "import"}


def commands() -> dict[str, Path]:
    """Returns the file of every command by its name; those of tools/ go without the folder's."""
    files = [*sorted(_PACKAGE.glob("commands/*.py")), *sorted(_PACKAGE.glob("tools/*.py"))]
    found = {file.stem: file for file in files if not file.stem.startswith("_")}
    return dict(sorted((_NAMES.get(name, name), file) for name, file in found.items()))


def describe() -> str:
    """Returns a list of the commands with the first line of each; imports nothing."""
    lines = []
    for name, file in commands().items():
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:20}{text.partition(chr(10))[0]}")
    return "\n".join((__doc__ or "", "Commands:", *lines))


def main() -> None:
    """Runs the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    known = commands()
    if name in ("--help", "-h"):
        print(describe())
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        print(f"error: {name}: no such command; the nearest is {near}", file=sys.stderr)
        sys.exit(_USER_ERROR)
    del sys.argv[1]
    file = known[name]
    folder = "" if file.parent.name == "commands" else f"{file.parent.name}."
    # Under the module's own name, so that worker processes find it too.
    runpy.run_module(f"cxrjax.{folder}{file.stem}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
