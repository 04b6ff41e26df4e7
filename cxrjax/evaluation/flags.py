"""Options of `predict`, `evaluate` and `score`; importing them loads no library."""

import argparse
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from cxrjax import choices
from cxrjax.distributed.hosts import HostFlags
from cxrjax.errors import UserError
from cxrjax.files import shipped
from cxrjax.flags import Flag, InFile, InFiles, InFolder, OutFolder
from cxrjax.language_model.flags import ClientFlags, ServerFlags
from cxrjax.paths import out_path

if TYPE_CHECKING:
    from cxrjax.distributed.meshes import MeshConfig

# What `--runner` may be; cxrjax/evaluation/systems/table.py starts them.
RUNNERS = ("prior_box", "majority", "question", "nearest", "random", "reader", "openai", "hf")
_MIN_SEEDS = 3


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of `--seeds=0,1,2`, for argparse.

    Raises:
        argparse.ArgumentTypeError: not whole numbers, repeated, or fewer than three.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, as 0,1,2") from None
    if len(set(seeds)) != len(seeds) or len(seeds) < _MIN_SEEDS or min(seeds) < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected at least {_MIN_SEEDS} different numbers from 0 on, as 0,1,2"
        )
    return seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFlags:
    """A model and how it asks.

    Attributes:
        workdir: a training run: its best checkpoint
        checkpoint: a base, a Hugging Face folder, a GGUF file, a PEFT adapter, or hf://OWNER/NAME
        base: of a PEFT adapter (default: what it names)
        step: of a training run, another checkpoint than the best
        prompt: prompt format (default: the model's own)
        source: of a run on a mixture: ask and read boxes as this source does (default: as `data`)
    """

    workdir: Path | None = None
    checkpoint: Annotated[Path | None, Flag(parse=shipped)] = None
    base: InFolder = None
    step: int | None = None
    prompt: Annotated[str | None, Flag(choices=choices.PROMPTS)] = None
    source: Annotated[str | None, Flag("NAME")] = None

    @property
    def named(self) -> Path:
        """Returns the run or other model, as it was named."""
        found = self.workdir or self.checkpoint
        assert found is not None, "a model needs --workdir or --checkpoint"
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingFlags:
    """Replaces the model's own settings; greedy by default (cxrjax/decoding/strategy.py).

    Attributes:
        grammar: what answers may be
        names: findings, for the grammar
        max_answer_tokens: length of an answer, end token included
        boxes: how coordinates are read from location tokens
        beams: beam search with so many hypotheses
        length_penalty: of beam search (1: by mean log-probability)
        temperature: of sampling; 0: the likeliest token at each step
        top_k: sample from the k likeliest tokens; 0: from all
        top_p: sample from the likeliest tokens up to this probability
        best_of: sample so many answers and keep the likeliest
        seed: of sampling, --image and baselines
    """

    grammar: Annotated[str | None, Flag(choices=choices.GRAMMARS)] = None
    names: Annotated[tuple[str, ...] | None, Flag("A,B,...", _split)] = None
    max_answer_tokens: int | None = None
    boxes: Annotated[str | None, Flag(choices=choices.BOX_READINGS)] = None
    beams: int | None = None
    length_penalty: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    best_of: int | None = None
    seed: int | None = None
    group: ClassVar[str] = "decoding"

    def decoding(self) -> dict[str, Any]:
        """Returns the `decoding.*` keys that were given."""
        given = {one.name: getattr(self, one.name) for one in dataclasses.fields(DecodingFlags)}
        return {name: value for name, value in given.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags(SourceFlags, DecodingFlags):
    """A model of ours that answers a file of questions.

    Attributes:
        image_root: what image_path is relative to (data/README.md)
        image: show the model another image than the one asked about, or that one blurred or masked,
            to see what it knows without looking (cxrjax/evaluation/systems/stand_in_images.py); by
            --seed
        images_per_batch: at a time, over all devices; raised to what they can share equally
        mesh: how devices share the work, such as fsdp=4,tensor=2 (cxrjax/distributed/meshes.py); by
            default each of them takes a part of the images
    """

    image_root: Path | None = None
    image: Annotated[str, Flag(choices=choices.STAND_INS)] = "shown"
    images_per_batch: int = 8
    mesh: Annotated[str, Flag("AXIS=N,...")] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerFlags:
    """Systems in place of a model of ours.

    prior_box: each finding's mean box in training records; majority: training records' most
    frequent answer; question: most frequent answer to the question's words, box of what it names;
    nearest: answer of the training image that looks most alike; random: an answer sampled from
    those that the question leaves open; reader: one radiologist's boxes; openai: any model behind
    an OpenAI-compatible server; hf: a transformers model in a folder.

    Attributes:
        runner: in place of a model
        train: training records of a baseline
        readers: records with `readers` of the images
        reader: the reader who answers, such as R8
        seeds: sample once for each, a file each (OUT.seed0.jsonl, ...), and print the spread
    """

    runner: Annotated[str | None, Flag(choices=RUNNERS)] = None
    train: InFile = None
    readers: InFile = None
    reader: Annotated[str | None, Flag("ID")] = None
    seeds: Annotated[tuple[int, ...] | None, Flag("0,1,2", parse_seeds)] = None
    group: ClassVar[str] = "runners"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherModelFlags:
    """Requests to other people's models, and the reading of their answers.

    Attributes:
        system: how it is asked and read: --list_systems
        wording: how questions are put (cxrjax/evaluation/systems/systems.py)
        codec: how it writes boxes (default: as the system does)
        reading: what of its text is the answer (default: as of the system)
        long_side: pixels of images that are sent
        logprobs: ask the server for answers' log-probabilities
        no_temperature: send none, for models that refuse the parameter; counts as sampling
        folder: a transformers model and its processor
    """

    system: Annotated[str | None, Flag("NAME")] = None
    wording: Annotated[str | None, Flag(choices=choices.WORDINGS)] = None
    codec: Annotated[str | None, Flag("NAME")] = None
    reading: Annotated[str | None, Flag(choices=choices.READINGS)] = None
    long_side: int = 1024
    logprobs: bool = False
    no_temperature: bool = False
    folder: InFolder = None
    group: ClassVar[str] = "other people's models (--runner=openai, --runner=hf)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictFlags(ModelFlags, RunnerFlags, OtherModelFlags, ServerFlags, HostFlags):
    """Options of `predict`.

    Attributes:
        questions: questions (JSON Lines)
        out: predictions to write
        reword: ask in other words (input_pipeline/wording.toml)
        conformal: of other patients, to widen boxes by
        cover: of true boxes (0.9)
    """

    questions: Annotated[Path, Flag("FILE")]
    out: Annotated[Path, Flag("FILE", out_path)]
    reword: Annotated[str | None, Flag(choices=choices.REWORDINGS)] = None
    conformal: InFolder = None
    cover: Annotated[float | None, Flag("SHARE")] = None

    def __post_init__(self) -> None:
        ServerFlags.__post_init__(self)
        if self.cover is not None and self.conformal is None:
            raise UserError("--cover is for --conformal=DIR; give both")
        if self.conformal is not None and self.seeds:
            raise UserError("--conformal is for one file of predictions; leave out --seeds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkFlags:
    """Scoring of answers, by `score` and `evaluate` alike.

    Attributes:
        benchmark: whose tables
        gt_mode: which boxes are true: by_protocol (the default: of VinDr-CXR's readers raw under
            paper and wbf under strict, else exact), exact (the answers' own), or of the readers:
            raw, per_reader, reader:ID, majority, unanimous, lesion_majority, wbf, nms, components
            (the last four also with their IoU, as in wbf:0.4)
        title: of tables and page (default: the benchmark's)
        resamples: bootstrap resamples; 0: none
        manifest: a build's manifest.json: refuse references that are not of its splits
    """

    benchmark: str
    gt_mode: Annotated[str | None, Flag("MODE")] = None
    title: str | None = None
    resamples: int = 1000
    manifest: InFile = None

    def __post_init__(self) -> None:
        if self.resamples < 0:
            raise UserError("--resamples must not be negative")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateFlags(ModelFlags, BenchmarkFlags, HostFlags):
    """Options of `evaluate`.

    Attributes:
        references: records with answers (default: run's)
        report: write the page, too: index.html in --out
        out: folder to write to
    """

    references: InFile = None
    report: bool = False
    out: Annotated[Path | None, Flag("DIR", out_path)] = None

    def __post_init__(self) -> None:
        BenchmarkFlags.__post_init__(self)
        if self.checkpoint and not (self.references and self.out):
            raise UserError("--checkpoint needs --references and --out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreFlags(BenchmarkFlags, ClientFlags):
    """Options of `score`.

    Attributes:
        references: records with answers
        predictions: predictions of one system; may be repeated (default: only baselines that see no
            image)
        name: the system's name, once for each --predictions, in order (default: the file's stem)
        codec: read boxes from the text of lines without boxes
        diagnose: print in which frame a system's boxes would fit much better; applies nothing
        seed: of the bootstrap
        interval: kind of bootstrap interval
        compare_to: the system that all others are compared with (default: the first)
        floors: baselines that see no image, beside the systems (default auto: up to 50,000
            questions)
        out: folder to write to
        summaries: folder for event files of the figures (CLU's writers; TensorBoard reads them)
        step: the step that --summaries has them at
        bertscore_model: folder of the encoder that BERTScore is computed with, such as
            roberta-large (needs PyTorch: the extra bertscore)
        bertscore_layer: its layer (default: the best known one)
        bertscore_baseline: LAYER,P,R,F of the package bert-score: rescale by it, as papers mostly
            do
        radeval: metrics of the package radeval, with commas: radgraph, f1chexbert, ratescore,
            green, srrbert (benchmarks with free text; their weights must lie on this machine)
        segmenter: splits Vietnamese text into words: pyvi (default), syllables or vncorenlp
        judge: who judges free text, for relative scores and facts: nobody (the default), rules
            (always labelled surrogate), a language model, or the verdicts that one gave (no
            network)
        verdicts: a judge's verdicts, stored and replayed (default: verdicts.jsonl in --out)
    """

    references: Annotated[Path, Flag("FILE")]
    predictions: InFiles = ()
    name: Annotated[Sequence[str], Flag("NAME")] = ()
    codec: Annotated[str | None, Flag(choices=choices.CODECS)] = None
    diagnose: bool = False
    seed: int = 0
    interval: Literal["bca", "percentile"] = "bca"
    compare_to: Annotated[str | None, Flag("NAME")] = None
    floors: Literal["auto", "always", "never"] = "auto"
    out: OutFolder
    summaries: InFolder = None
    step: int = 0
    bertscore_model: InFolder = None
    bertscore_layer: Annotated[int | None, Flag("N")] = None
    bertscore_baseline: InFile = None
    radeval: Annotated[tuple[str, ...] | None, Flag("NAMES", _split)] = None
    segmenter: Annotated[str | None, Flag("NAME")] = None
    judge: Literal["none", "surrogate", "language_model", "replay"] = "none"
    verdicts: InFile = None

    def __post_init__(self) -> None:
        ClientFlags.__post_init__(self)
        if self.resamples < 0 or self.seed < 0:
            raise UserError("--resamples and --seed must not be negative")
        of_model = (self.bertscore_layer, self.bertscore_baseline)
        if self.bertscore_model is None and of_model != (None, None):
            raise UserError("--bertscore_layer and --bertscore_baseline are of --bertscore_model")


def mesh_config(text: str) -> "MeshConfig":
    """The `mesh` group that `--mesh` describes; what it leaves out is as by default.

    Raises:
        UserError: it is not AXIS=N,... of axes that there are.
    """
    from cxrjax.distributed.meshes import AXES, MeshConfig

    sizes: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        axis, _, size = (part.strip() for part in word.partition("="))
        rest = axis == "data" and size == "-1"
        if axis not in AXES or not (rest or re.fullmatch("[1-9][0-9]*", size)):
            raise UserError(
                f"--mesh={text}: expected {'=N,'.join(AXES)}=N or some of them, found {word!r}"
            )
        sizes[axis] = int(size)
    return MeshConfig(**sizes)
