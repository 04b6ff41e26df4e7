"""Rendering of a conversation by an untrusted chat template; runs in a child process.

A template is a program. Jinja's sandbox keeps it from the machine, and the child's limits from
taking time and memory without end.
"""

from collections.abc import Sequence
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template


def render(content: bytes, messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], bytes]:
    """The text of a conversation that the model is to go on with, for `run_in_child`."""
    rendered: Any = render_jinja_template(
        [list(messages)],
        chat_template=bytes(content).decode(),
        add_generation_prompt=True,
        bos_token="<bos>",
    )
    return {}, rendered[0][0].encode()
