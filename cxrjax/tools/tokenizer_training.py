"""Trains the small tokenizer of the demo and the tests.

    python -m cxrjax.tools.tokenizer_training --out=data/demo_base/tokenizer.model

2,048 pieces: PaliGemma's special ids, 1,024 `<loc>`, 128 `<seg>`, the newline, 256 bytes (so that
no text is lost), and what is left for words of chest radiography. Takes seconds; the same corpus
gives the same bytes. In Vietnamese, from the questions and reports of ViX-Ray's synthetic set:

    python -m cxrjax.tools.tokenizer_training --corpus=vix_ray \\
        --out=data/vix_ray/tokenizer.model
"""

import argparse
from pathlib import Path

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.untrusted.foreign_files import read_text

CORPORA = ("templates", "vix_ray")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the small SentencePiece tokenizer with <loc> and <seg> pieces."
    )
    parser.add_argument("--out", required=True, type=Path, help="tokenizer.model to write")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", type=Path, help="corpus, a sentence a line (default: templates)")
    text.add_argument("--corpus", choices=CORPORA, default="templates", help="one of ours")
    arguments = parser.parse_args()
    from cxrjax.input_pipeline.tokenizer import Tokenizer
    from cxrjax.input_pipeline.tokenizer_training import train_tokenizer
    from cxrjax.simulation import tokenizer_corpus

    if arguments.text is None:
        corpus = list(tokenizer_corpus.CORPORA[arguments.corpus]())
    else:
        with reading(arguments.text, "the corpus"):
            corpus = read_text(arguments.text).splitlines()
    model = train_tokenizer(corpus)
    tokenizer = Tokenizer(model, str(arguments.out))
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_bytes(model)
    except OSError as error:
        raise UserError(f"{arguments.out}: cannot write: {error.strerror}") from None
    print(f"{arguments.out}: {tokenizer.vocab_size} pieces, {len(model)} bytes")


if __name__ == "__main__":
    run(main)
