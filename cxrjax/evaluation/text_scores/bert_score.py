"""BERTScore of many pairs of texts, with a transformers model from a folder, and its rescaling.

Needs PyTorch (`pip install 'cxrjax[bertscore]'`); nothing is downloaded. Tests compare it with the
package bert-score, which with transformers 5 fails on an empty text.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from cxrjax.errors import UserError, optional
from cxrjax.files import read_json_object
from cxrjax.progress import progress_bar
from cxrjax.untrusted.foreign_files import read_text


class BertScore(NamedTuple):
    """Precision, recall and F1; 1 at most, and above 0 for most pairs of texts unless rescaled."""

    precision: float
    recall: float
    f1: float


def bert_score(
    candidate: Float[np.ndarray, "n d"],
    candidate_words: Bool[np.ndarray, " n"],
    reference: Float[np.ndarray, "m d"],
    reference_words: Bool[np.ndarray, " m"],
) -> BertScore:
    """Averages each token's highest cosine with a token of the other text over a text's words.

    Args:
        candidate, reference: a vector for each token, first and last special tokens included:
            they may be another one's nearest.
        candidate_words, reference_words: tokens of the text itself, over which to average.

    Returns:
        Zeros where a text has no words.
    """
    if not candidate_words.any() or not reference_words.any():
        return BertScore(0.0, 0.0, 0.0)
    one, two = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (candidate, reference))
    cosine = one @ two.T
    precision = float(cosine.max(axis=1)[candidate_words].mean())
    recall = float(cosine.max(axis=0)[reference_words].mean())
    both = precision + recall
    return BertScore(precision, recall, 2 * precision * recall / both if both else 0.0)


def rescale(score: BertScore, baseline: BertScore) -> BertScore:
    """Maps the baseline of unrelated texts to 0 and 1 to 1; below 0 is possible."""
    return BertScore(*((s - b) / (1 - b) for s, b in zip(score, baseline, strict=True)))


# The layer that the authors of BERTScore found best, by kind of model and number of layers:
# roberta-large, roberta-base, bert-large, bert-base.
_BEST_LAYER = {("roberta", 24): 17, ("roberta", 12): 10, ("bert", 24): 18, ("bert", 12): 9}
_BATCH = 32

TokenVectors = tuple[Float[np.ndarray, "tokens d"], Bool[np.ndarray, " tokens"]]


@dataclass(frozen=True)
class BertScoreSettings:
    """Model and layer of BERTScore."""

    model: Path  # folder with config.json, weights and tokenizer
    layer: int | None = None  # of the vectors, 1 for the first; None: the best known one
    # Table of the package bert-score with the columns LAYER, P, R, F, for rescaling; None: raw
    # scores.
    baseline: Path | None = None


class BertScorer:
    """Scores pairs of texts.

    Attributes:
        name: model, layer and whether scores are rescaled, as tables show it.

    Raises:
        UserError: PyTorch is not installed, the folder holds no such model, the layer is unknown,
            or the baseline has no row for it.
    """

    def __init__(self, settings: BertScoreSettings) -> None:
        remedy = "pip install 'cxrjax[bertscore]', or leave --bertscore_model out"
        torch = optional("torch", "bertscore", remedy)
        config = _read_config(settings.model)
        self._layer = _layer(settings, config)
        self._baseline = None if settings.baseline is None else _baseline(settings, self._layer)
        from transformers import AutoModel, AutoTokenizer

        prefix = {"add_prefix_space": True} if config.get("model_type") == "roberta" else {}
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                settings.model, local_files_only=True, **prefix
            )
            model: Any = AutoModel.from_pretrained(settings.model, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{settings.model}: no model that can be read: {reason}") from None
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(self._device).eval()
        # RoBERTa numbers its positions from behind the padding token's.
        spare = 2 if config.get("model_type") == "roberta" else 0
        self._longest = config["max_position_embeddings"] - spare
        self.name = f"{settings.model.name}, layer {self._layer}" + (
            ", rescaled" if self._baseline else ""
        )

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[BertScore]:
        """Scores each (candidate, reference); texts are cut to the model's length."""
        # Pairs of similar length share a batch, which saves padding.
        order = sorted(range(len(pairs)), key=lambda i: max(map(len, pairs[i])))
        scores = [BertScore(0.0, 0.0, 0.0)] * len(pairs)
        starts = range(0, len(order), _BATCH)
        for start in progress_bar(starts, desc="BERTScore", unit="batch"):
            batch = order[start : start + _BATCH]
            vectors = self._vectors([text for i in batch for text in pairs[i]])
            for i, candidate, reference in zip(batch, vectors, vectors, strict=True):
                score = bert_score(*candidate, *reference)
                scores[i] = rescale(score, self._baseline) if self._baseline else score
        return scores

    def _vectors(self, texts: list[str]) -> Iterator[TokenVectors]:
        import torch

        special = [self._tokenizer.cls_token_id, self._tokenizer.sep_token_id]
        encoded = self._tokenizer(
            [text.strip() for text in texts],
            padding=True,
            truncation=True,
            max_length=min(self._tokenizer.model_max_length, self._longest),
            return_tensors="pt",
        )
        inputs = {name: encoded[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            hidden = self._model(**inputs, output_hidden_states=True).hidden_states[self._layer]
        for row, ids, mask in zip(
            hidden.float().cpu().numpy(),
            encoded["input_ids"].numpy(),
            encoded["attention_mask"].numpy().astype(bool),
            strict=True,
        ):
            yield row[mask], ~np.isin(ids[mask], special)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json_object(folder / "config.json")
    except UserError:
        raise UserError(
            f"{folder}: no config.json of a transformers model: expected a folder of "
            "`save_pretrained`, such as roberta-large"
        ) from None
    for key in ("num_hidden_layers", "max_position_embeddings"):
        if not isinstance(config.get(key), int):
            raise UserError(f"{folder}/config.json: no {key}: expected an encoder like BERT")
    return config


def _layer(settings: BertScoreSettings, config: dict[str, Any]) -> int:
    layers = config["num_hidden_layers"]
    layer = settings.layer
    if layer is None:
        layer = _BEST_LAYER.get((str(config.get("model_type")), layers))
    if layer is None:
        found = "the best layer is not known: give --bertscore_layer,"
    elif not 1 <= layer <= layers:
        found = f"--bertscore_layer={layer}: expected"
    else:
        return layer
    raise UserError(f"{settings.model}: {found} 1 to {layers}")


def _baseline(settings: BertScoreSettings, layer: int) -> BertScore:
    assert settings.baseline is not None
    try:
        for row in csv.DictReader(io.StringIO(read_text(settings.baseline), newline="")):
            if int(row["LAYER"]) == layer:
                return BertScore(float(row["P"]), float(row["R"]), float(row["F"]))
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{settings.baseline}: no table of LAYER,P,R,F: {error}") from None
    raise UserError(f"{settings.baseline}: no row for layer {layer}")
