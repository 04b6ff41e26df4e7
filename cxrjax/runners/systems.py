"""The systems that the papers list and some besides: how each is asked, and how its answer is read.

Only what its makers published (a model card, a repository, a paper) is written down as a system's
own; what is in our words, or not known, is marked so in `unknown`. GEMeX does not print the words
in which it asked its ten models, so that no preset can repeat its run word for word; ViX-Ray's
prompt is the question of its records.

A preset holds for the model wherever it runs. What differs by place is the conversation around the
question: a server, or the template of a transformers folder, adds it; `template` is for folders of
converted weights that have none.
"""

import dataclasses
import difflib

from cxrjax.errors import UserError
from cxrjax.input_pipeline.prompts import MEDGEMMA_LOCATE

GEMEX, VIX_RAY, BESIDES = "GEMeX", "ViX-Ray", "-"

# In our words; the forms are the systems' own, or (fractions) one that any instruction-following
# model can be asked for.
_FRACTIONS = (
    "After each thing that you name and that can be seen, write where it is as [x_min, y_min, "
    "x_max, y_max]: fractions of the image's width and height with two decimals, (0, 0) being the "
    "upper left corner."
)
_BOX_2D = (
    "Answer in a sentence. Then list where it can be seen as "
    '```json[{"box_2d": [y_min, x_min, y_max, x_max], "label": "..."}]```, whole numbers from 0 to '
    "1000 of the image's height and width; an empty list where nothing is to be seen."
)

# Vicuna's first conversation, which the models below were tuned in (FastChat, Apache-2.0).
_VICUNA_SYSTEM = (
    "A chat between a curious {person} and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the {person}'s questions."
)
_VICUNA_V0 = _VICUNA_SYSTEM.format(person="human") + "###Human: {image}\n{question}###Assistant:"
_VICUNA_V1 = _VICUNA_SYSTEM.format(person="user") + " USER: {image}\n{question} ASSISTANT:"

_OWN_CODE = "runs in its own code alone: put a server before it, or predict there and score here"
_NO_BOXES = "no form for boxes published"


@dataclasses.dataclass(frozen=True)
class System:
    """One system.

    Attributes:
        title: as the papers print it.
        listed: the papers whose tables have it.
        source: the weights, or the service.
        runners: those of ours that can ask it as it is; `openai` wants a server that runs it.
        reading: what of its text is the answer, a key of `readings.READINGS`.
        codec: how it writes boxes, a key of `cxrjax.codecs.CODECS`; None: it writes none.
        box_request: what follows a question to have boxes in the answer; "": nothing would help.
        locate: its request to find one thing, {finding} in the thing's place.
        pad_square: show it images padded to a square with black, centred, as its boxes count.
        template: of the conversation, for transformers folders without one; {image} and {question}.
        unknown: what is not public, not supported here, or in our words, and why.
    """

    title: str
    listed: str
    source: str
    runners: tuple[str, ...]
    reading: str = "whole"
    codec: str | None = None
    box_request: str = ""
    locate: str = ""
    pad_square: bool = False
    template: str = "{image}{question}"
    unknown: str = ""


_BOTH, _SERVER = ("openai", "hf"), ("openai",)

SYSTEMS: dict[str, System] = {
    # Anything else behind a server or in a folder.
    "any": System(
        "any other", BESIDES, "", _BOTH, unknown="asked as it is; give --codec for boxes"
    ),
    "paligemma": System(
        "PaliGemma",
        BESIDES,
        "google/paligemma-3b-*",
        _BOTH,
        codec="paligemma",
        locate="detect {finding}",
        unknown="questions of VQA are put as they are, without the `answer en` of its mixture",
    ),
    "medgemma": System(
        "MedGemma",
        BESIDES,
        "google/medgemma-4b-it",
        _BOTH,
        reading="final",
        unknown=f"{_NO_BOXES} for version 1",
    ),
    "medgemma_1.5": System(
        "MedGemma 1.5",
        BESIDES,
        "google/medgemma-1.5-4b-it",
        _BOTH,
        reading="final",
        codec="medgemma_json",
        locate=MEDGEMMA_LOCATE,
        pad_square=True,
        unknown="boxes within answers to questions are not documented",
    ),
    "llava_v1": System(
        "LLaVA-v1",
        GEMEX,
        "liuhaotian/LLaVA-7b-delta-v0 (a delta over LLaMA)",
        _BOTH,
        reading="turn",
        template=_VICUNA_V0,
        unknown=f"{_NO_BOXES}; folders must be converted to transformers' llava first",
    ),
    "llava_v1.5": System(
        "LLaVA-v1.5",
        GEMEX,
        "llava-hf/llava-1.5-7b-hf",
        _BOTH,
        reading="turn",
        codec="llava",
        locate="Please provide the bounding box coordinate of the region this sentence describes: "
        "{finding}",
        template=_VICUNA_V1,
        pad_square=True,
        unknown="boxes within answers to questions are not documented",
    ),
    "minigpt4_v1": System(
        "Mini-GPT4-v1",
        GEMEX,
        "Vision-CAIR/MiniGPT-4",
        _SERVER,
        reading="turn",
        unknown=f"{_NO_BOXES}; {_OWN_CODE}; its demo samples at temperature 1",
    ),
    "mplug_owl": System(
        "mPLUG-Owl",
        GEMEX,
        "MAGAer13/mplug-owl-llama-7b",
        _SERVER,
        reading="turn",
        unknown=f"{_NO_BOXES}; {_OWN_CODE}; which of its versions the paper ran is not said",
    ),
    "gpt_4o_mini": System(
        "GPT-4o-mini",
        GEMEX,
        "OpenAI: gpt-4o-mini",
        _SERVER,
        codec="radvlm",
        box_request=_FRACTIONS,
        unknown="no form for boxes of its own: asked for fractions in our words",
    ),
    "llava_med_v1": System(
        "LLaVA-Med-v1",
        GEMEX,
        "microsoft/llava-med-7b-delta",
        _BOTH,
        reading="turn",
        template=_VICUNA_V0,
        unknown=f"{_NO_BOXES}; folders must be converted to transformers' llava first",
    ),
    "llava_med_v1.5": System(
        "LLaVA-Med-v1.5",
        GEMEX,
        "microsoft/llava-med-v1.5-mistral-7b",
        _BOTH,
        reading="turn",
        template="[INST] {image}\n{question} [/INST]",
        unknown=f"{_NO_BOXES}; folders must be converted to transformers' llava first",
    ),
    "minigpt_med": System(
        "MiniGPT-Med",
        GEMEX,
        "Vision-CAIR/MiniGPT-Med",
        _SERVER,
        reading="turn",
        codec="minigpt",
        locate="[detection] {finding}",
        unknown=f"{_OWN_CODE}; its task tags are MiniGPT-v2's",
    ),
    "xraygpt": System(
        "XrayGPT",
        GEMEX,
        "mbzuai-oryx/XrayGPT",
        _SERVER,
        reading="turn",
        unknown=f"{_NO_BOXES}; {_OWN_CODE}; its demo samples at temperature 1",
    ),
    "radfm": System(
        "RadFM",
        GEMEX,
        "chaoyi-wu/RadFM",
        _SERVER,
        unknown=f"{_NO_BOXES}; {_OWN_CODE}; its demo crops images at random before it looks",
    ),
    "lavy": System(
        "LaVy",
        VIX_RAY,
        "a LLaVA over Vistral-7B",
        _SERVER,
        reading="turn",
        unknown=f"{_NO_BOXES}; {_OWN_CODE}; the conversation it was tuned in is not documented",
    ),
    "vintern_1b": System(
        "Vintern-1B-v3.5",
        VIX_RAY,
        "5CD-AI/Vintern-1B-v3_5",
        _SERVER,
        unknown=f"{_NO_BOXES} for it; its folder needs code of its own, which is not run here",
    ),
    "internvl2.5": System(
        "InternVL2.5",
        VIX_RAY,
        "OpenGVLab/InternVL2_5-*",
        _BOTH,
        codec="internvl",
        locate="Please provide the bounding box coordinate of the region this sentence describes: "
        "<ref>{finding}</ref>",
        unknown="the hf runner needs a folder in transformers' own format (*-hf)",
    ),
    "qwen2.5_vl": System(
        "Qwen2.5-VL",
        VIX_RAY,
        "Qwen/Qwen2.5-VL-7B-Instruct (the paper's 2B does not exist)",
        _BOTH,
        unknown="its boxes are pixels of the image as its processor resized it, which a server "
        "does not tell: none are asked for",
    ),
    "minicpm_v_2.6": System(
        "MiniCPM-V-2.6",
        VIX_RAY,
        "openbmb/MiniCPM-V-2_6",
        _SERVER,
        unknown=f"{_NO_BOXES}; its folder needs code of its own, which is not run here",
    ),
    "gemini": System(
        "Gemini",
        VIX_RAY,
        "Google's service; the paper does not say which version",
        _SERVER,
        reading="final",
        codec="gemini_json",
        box_request=_BOX_2D,
        unknown="the form of boxes is documented, the request is in our words",
    ),
    "gpt_4v": System(
        "GPT-4V (o4 multimodal)",
        VIX_RAY,
        "OpenAI; the paper cites GPT-4o's system card under this name",
        _SERVER,
        codec="radvlm",
        box_request=_FRACTIONS,
        unknown="no form for boxes of its own: asked for fractions in our words",
    ),
    "maira_2": System(
        "MAIRA-2",
        BESIDES,
        "microsoft/maira-2",
        _SERVER,
        codec="maira2",
        unknown="the prompt belongs to its own processor, under a research licence, and is not "
        "repeated here",
    ),
    "chexagent": System(
        "CheXagent",
        BESIDES,
        "StanfordAIMI/CheXagent-2-3b",
        _SERVER,
        codec="chexagent",
        locate="Please locate the following phrase: {finding}",
        unknown="its folder needs code of its own, which is not run here",
    ),
    "radvlm": System(
        "RadVLM",
        BESIDES,
        "KrauthammerLab/RadVLM",
        _BOTH,
        codec="radvlm",
        locate="Where is the {finding}? Give the coordinates of its bounding box.",
        unknown="trained on many wordings, of which this is none: it is ours",
    ),
}


def get_system(name: str) -> System:
    """The system of that name.

    Raises:
        UserError: there is none; suggests the nearest.
    """
    if name not in SYSTEMS:
        nearest = difflib.get_close_matches(name, SYSTEMS, n=1, cutoff=0.0)[0]
        raise UserError(
            f"--system={name}: not known, did you mean {nearest}? (--list_systems lists all)"
        )
    return SYSTEMS[name]


def describe_systems() -> str:
    """The table as lines of text: a system's name and values, below them what is unknown."""
    rows = [("--system", "title", "listed by", "runners", "boxes", "wordings with boxes")]
    for name, system in SYSTEMS.items():
        asked = [
            word
            for word, has in (("grounded", system.box_request), ("locate", system.locate))
            if has
        ]
        rows.append(
            (
                name,
                system.title,
                system.listed,
                ",".join(system.runners),
                system.codec or "-",
                ",".join(asked) or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, details in zip(rows, (None, *SYSTEMS.values()), strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        if details is not None:
            lines += [f"    {part}" for part in (details.source, details.unknown) if part]
    return "\n".join(lines)
