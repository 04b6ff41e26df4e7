"""Free names of findings to reference findings.

The published mapping takes the nearest concept by BioLORD sentence embeddings. Here a name is
looked up among wordings, then compared with them letter by letter; with sentence-transformers and a
model on disk, embeddings do the comparing.
"""

import difflib
import functools
from pathlib import Path
from typing import Protocol

import numpy as np

from cxrjax.errors import UserError
from cxrjax.radiology_text.definitions import Definitions, load_definitions
from cxrjax.radiology_text.english import lemmas

# Ours: "cardiomegally" is 0.96 from "cardiomegaly"; "effusion" and "infusion" are 0.88.
FUZZY_THRESHOLD = 0.9
EMBEDDING_THRESHOLD = 0.7


class EntityMapper(Protocol):
    """Maps names to reference findings."""

    def map(self, name: str) -> str | None:
        """The finding that a name means, None where no one is near enough."""
        ...


class LexicalMapper:
    """Maps by wording: the same words in the singular, else the most similar spelling.

    Args:
        definitions: the package's where not given.
        threshold: least similarity (difflib's ratio, 0 to 1) of spellings.
    """

    def __init__(
        self, definitions: Definitions | None = None, threshold: float = FUZZY_THRESHOLD
    ) -> None:
        self._names = (definitions or load_definitions()).finding_names
        self._threshold = threshold
        self._spellings = [" ".join(key) for key in self._names]
        self.map = functools.lru_cache(maxsize=65536)(self._map)

    def _map(self, name: str) -> str | None:
        key = " ".join(lemmas(name))
        if not key:
            return None
        if (exact := self._names.get(key)) is not None:
            return exact
        near = difflib.get_close_matches(key, self._spellings, 1, self._threshold)
        return self._names.get(near[0]) if near else None


class EmbeddingMapper:
    """Maps by the nearest sentence embedding.

    Args:
        model: folder of a sentence-transformers model, such as BioLORD's.
        threshold: least cosine similarity.

    Raises:
        UserError: sentence-transformers or the model is not there.
    """

    def __init__(
        self,
        model: Path,
        definitions: Definitions | None = None,
        threshold: float = EMBEDDING_THRESHOLD,
    ) -> None:
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
            self._encode = SentenceTransformer(str(model), local_files_only=True).encode
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{model}: cannot be read as a sentence-transformers model: {reason}"
            ) from None
        names = (definitions or load_definitions()).finding_names
        wordings = [" ".join(key) for key in names]
        self._findings = [names.get(wording) for wording in wordings]
        self._vectors = np.asarray(self._encode(wordings, normalize_embeddings=True))
        self._threshold = threshold
        self.map = functools.lru_cache(maxsize=65536)(self._map)

    def _map(self, name: str) -> str | None:
        vector = np.asarray(self._encode([name], normalize_embeddings=True))[0]
        similarity = self._vectors @ vector
        best = int(similarity.argmax())
        return self._findings[best] if similarity[best] >= self._threshold else None


@functools.lru_cache(maxsize=1)
def embedding_mapper(model: Path) -> EmbeddingMapper:
    """The mapper by this model, loaded once a process."""
    return EmbeddingMapper(model)
