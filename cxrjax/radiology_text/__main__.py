"""Reads sentences and answers: what they assert of findings.

    python -m cxrjax.radiology_text --sentences=FILE --out=FILE [--language=en|vi]
    python -m cxrjax.radiology_text --list_findings

FILE has a line of JSON each: {"id", "text"[, "question"]}. Out comes, in their order, {"id",
"assertions": [{"finding", "status", "certainty", "time", "side", "regions", "severity", "sizes",
"distances", "count", "span", "modifiers", "cue", "organ", "source"}], "answer": "yes" | "no" |
"undecided" | "off_topic" | "nothing", or null where there is no question, "unsaid": [{"finding",
"reason", "span"}] of findings that are named and not asserted}.
"""

import json
from typing import Any

from cxrjax.cli import command_parser, run
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading, replace_text
from cxrjax.paths import in_path, out_path
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.reading import LANGUAGES, language_of, open_reader
from cxrjax.untrusted.foreign_files import read_lines
from cxrjax.untrusted.json_text import parse_object


def main() -> None:
    """Reads one file, or prints the findings."""
    parser = command_parser("radiology_text", __doc__)
    parser.add_argument("--sentences", type=in_path)
    parser.add_argument("--out", type=out_path)
    parser.add_argument(
        "--language", choices=LANGUAGES, help="default: each text's, by its letters"
    )
    parser.add_argument("--list_findings", action="store_true", help="names, then synonyms")
    flags = parser.parse_args()
    if flags.list_findings:
        for finding in load_definitions().findings.values():
            print("; ".join((finding.name, *finding.synonyms)))
        return
    if flags.sentences is None or flags.out is None:
        parser.error("--sentences and --out are needed, or --list_findings")
    with reading(flags.sentences, "sentences"):
        lines = [
            json.dumps(
                _read_line(line, f"{flags.sentences}:{number}", flags.language), ensure_ascii=False
            )
            for number, line in read_lines(flags.sentences)
        ]
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(flags.out, "".join(line + "\n" for line in lines))
    print(f"{flags.out}: {len(lines):,} read")


def _read_line(line: bytes, where: str, language: str | None) -> dict[str, Any]:
    try:
        fields = parse_object(line)
    except ForeignError as error:
        raise UserError(f"{where}: {error}") from None
    text, question = fields.get("text"), fields.get("question")
    if not isinstance(text, str) or not isinstance(question, str | None) or "id" not in fields:
        raise UserError(f'{where}: expected {{"id", "text"[, "question"]}}, the last two as texts')
    answer = open_reader(language or language_of(text)).read(text, question)
    return {
        "id": fields["id"],
        "assertions": [one.to_json() for one in answer.assertions],
        "answer": answer.outcome,
        "unsaid": [one._asdict() for one in answer.unsaid],
    }


if __name__ == "__main__":
    run(main)
