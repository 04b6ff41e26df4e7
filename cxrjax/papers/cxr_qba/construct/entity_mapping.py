"""Maps free names of findings to reference findings.

The published mapping takes the nearest concept by BioLORD sentence embeddings. Here a name is
looked up among wordings, then compared with them letter by letter; with sentence-transformers and a
model on disk, embeddings do the comparing.
"""

import difflib
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cxrjax.errors import UserError
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.radiology_text.english import lemmas

# Ours: "cardiomegally" is 0.96 from "cardiomegaly"; "effusion" and "infusion" are 0.88.
FUZZY_THRESHOLD = 0.9  # difflib's ratio
EMBEDDING_THRESHOLD = 0.7  # cosine

# The finding that a name means; None where no one is near enough.
EntityMapper = Callable[[str], str | None]


@functools.lru_cache(maxsize=65536)
def map_by_wording(name: str) -> str | None:
    """Returns the finding of the same words in the singular, else of the most similar spelling."""
    names = load_definitions().finding_names
    key = " ".join(lemmas(name))
    if not key:
        return None
    if (exact := names.get(key)) is not None:
        return exact
    spellings = [" ".join(words) for words in names]
    near = difflib.get_close_matches(key, spellings, 1, FUZZY_THRESHOLD)
    return names.get(near[0]) if near else None


@functools.lru_cache(maxsize=1)
def embedding_mapper(model: Path) -> EntityMapper:
    """Returns a mapper by the nearest sentence embedding, loaded once a process.

    Args:
        model: folder of a sentence-transformers model, such as BioLORD's.

    Raises:
        UserError: sentence-transformers or the model is not there.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError(
            "mapping by embeddings needs sentence-transformers: pip install "
            "sentence-transformers, or leave --entity_model out to map by wording"
        ) from None
    if not model.is_dir():
        raise UserError(f"{model}: not a folder; expected a sentence-transformers model")
    try:
        encode = SentenceTransformer(str(model), local_files_only=True).encode
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{model}: cannot be read as a sentence-transformers model: {reason}"
        ) from None
    names = load_definitions().finding_names
    wordings = [" ".join(key) for key in names]
    vectors = np.asarray(encode(wordings, normalize_embeddings=True))

    @functools.lru_cache(maxsize=65536)
    def nearest(name: str) -> str | None:
        similarity = vectors @ np.asarray(encode([name], normalize_embeddings=True))[0]
        best = int(similarity.argmax())
        return names.get(wordings[best]) if similarity[best] >= EMBEDDING_THRESHOLD else None

    return nearest
