"""A base and what was tuned from it, served side by side for whoever compares them."""

from pathlib import Path
from typing import Any

from cxrjax.apps.serving.named_models import ServedModels, open_served
from cxrjax.errors import UserError
from cxrjax.input_pipeline.prompts import PROMPTS
from cxrjax.models.peft import ADAPTER_CONFIG
from cxrjax.training.checkpoint import model_config

NAMES = ("base", "tuned")


def open_pair(base: Path, tuned: Path, **shapes: Any) -> tuple[ServedModels, ...]:
    """Both by the names `base` and `tuned`, asked in the words that the latter was tuned on.

    Args:
        shapes: `slots`, `longest_prompt` and `least_bucket` of `open_served`.

    Returns:
        One server's models where the tuned one is an adapter on this base; else each by itself.

    Raises:
        UserError: there is no such model, or the tuned one cannot be asked in free words.
    """
    for name, folder, default in zip(
        NAMES, (base, tuned), ("data/real_base", "runs/demo"), strict=True
    ):
        if not folder.is_dir():
            raise UserError(
                f"--{name}={folder}: there is no such folder; `make demo` makes {default}, or name "
                "another base directory or training workdir"
            )
    is_peft = (tuned / ADAPTER_CONFIG).is_file()
    prompt = model_config(base if is_peft else tuned).data.prompt
    if PROMPTS[prompt].needs_finding:
        raise UserError(
            f"--tuned={tuned}: its prompt format {prompt!r} asks about one finding by name, and "
            "the page asks in free words; expected a model that was tuned with 'vqa' or the like"
        )
    settings: dict[str, Any] = {"decoding": {}, **shapes}
    try:
        return (open_served(base, NAMES[0], {NAMES[1]: tuned}, prompt=prompt, **settings),)
    except UserError:
        if is_peft:
            raise
        # What cannot share a base, or is none: each says so by itself.
        first = open_served(base, NAMES[0], {}, prompt=prompt, **settings)
        return first, open_served(tuned, NAMES[1], {}, **settings)
