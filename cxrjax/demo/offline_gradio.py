"""Gradio, told to keep to this machine; apart from the page, so that its absence shows at once."""

import os
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError


def import_gradio(uploads: Path) -> Any:
    """Gradio, silent towards the network.

    Args:
        uploads: where it puts them; only the first import in a process counts.

    Raises:
        UserError: it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gradio
    except ImportError as error:
        raise UserError(
            f"the page needs Gradio ({error}), which wants an older Pillow than the rest: "
            "`make try` installs it in an environment of its own and starts the page there"
        ) from None
    return gradio
