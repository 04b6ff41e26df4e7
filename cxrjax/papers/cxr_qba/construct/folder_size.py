"""Says where the bytes of a built folder are.

    python -m cxrjax.papers.cxr_qba.construct.folder_size --build=DIR

DIR is what `build --dataset=cxr_qba` wrote. Everything in it counts: records, questions, the native
archives, tables. A question is a record, so one question of two images counts twice. Of the records
the fields are told, each with its name and marks; those of answers and their parts together.
"""

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax import cli
from cxrjax.cli import command_parser
from cxrjax.errors import UserError
from cxrjax.files import read_json_lines

_LEAST_SHOWN = 5.0  # bytes a question
_SAMPLE = 50_000  # lines whose fields are looked at


def folder_bytes(build: Path) -> tuple[int, dict[str, int], dict[str, float]]:
    """Questions of a build; file or folder -> bytes; field of a record -> bytes a question.

    Raises:
        UserError: the folder has no records.
    """
    records = sorted((build / "records").glob("*.jsonl"))
    if not records:
        raise UserError(f"{build}: no records/*.jsonl; give the --out of a build of cxr_qba")
    files: collections.Counter[str] = collections.Counter()
    for path in build.rglob("*"):
        if path.is_file():
            files[path.relative_to(build).parts[0]] += path.stat().st_size
    questions, looked_at = 0, 0
    fields: collections.Counter[str] = collections.Counter()
    for file in records:
        for _, record in read_json_lines(file, "records", "build it again"):
            questions += 1
            if looked_at < _SAMPLE:
                looked_at += 1
                fields.update(dict(_fields(record)))
    each = {name: size / max(looked_at, 1) for name, size in fields.items()}
    return questions, dict(files), each


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    found: collections.Counter[str] = collections.Counter()

    def add(prefix: str, content: Mapping[str, Any], inner: str) -> None:
        for name, value in content.items():
            if name == inner:
                found[f"{prefix}{name}"] += len(name) + 8
                for one in value:
                    add("answers.", one, "sub_answers")
            else:
                written = json.dumps(value, ensure_ascii=False).encode()
                found[f"{prefix}{name}"] += len(written) + len(name) + 6

    add("", record, "answers")
    yield from found.items()


def table(questions: int, files: Mapping[str, int], fields: Mapping[str, float]) -> str:
    """The three as Markdown, largest first."""
    total = sum(files.values())
    lines = ["| | bytes | bytes a question |", "|---|---|---|"]
    for name, size in sorted(files.items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {size:,} | {size / questions:.0f} |")
    lines += [f"| all, of {questions:,} questions | {total:,} | {total / questions:.0f} |", ""]
    lines += ["| field of a record | bytes a question |", "|---|---|"]
    for name, each in sorted(fields.items(), key=lambda item: -item[1]):
        if each >= _LEAST_SHOWN:
            lines.append(f"| {name} | {each:.0f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    parser = command_parser("papers.cxr_qba.construct.folder_size", __doc__)
    parser.add_argument("--build", required=True, type=Path, help="the --out of a build")
    print(table(*folder_bytes(parser.parse_args(argv).build)))


if __name__ == "__main__":
    cli.run(main)
