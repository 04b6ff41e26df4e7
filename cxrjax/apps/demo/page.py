"""The demo page in Gradio, which is imported here alone, kept to this machine and served."""

import functools
import itertools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cxrjax.apps.demo import remarks, rendering
from cxrjax.apps.demo.answers import LONGEST_QUESTION, Models, NamedFile
from cxrjax.apps.viewer import viewer_parts
from cxrjax.errors import ForeignError, UserError, first_line, optional
from cxrjax.files import file_sha256
from cxrjax.untrusted.foreign_files import read_text


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
    return optional(
        "gradio",
        "app",
        "it wants an older Pillow than the rest, so `make try` installs it in an environment of "
        "its own and starts the page there",
    )


_FOLDER = Path(__file__).parent
_SCRIPT = _FOLDER / "page.js"
_TITLE = "Ask about an X-ray"
_WARNING = (
    "**Research software. Not a medical device.** Not for diagnosis, treatment or advice. Answers "
    "and boxes may be wrong however high their probability; the demo's models know real lungs, but "
    "lesions only as they are simulated into radiographs of children, and cannot read a real one. "
    "{where}"
)
_HERE = "Images stay on the machine that serves this page, until it is stopped."
_AWAY = "Images are sent to {}, whose models answer."
_HELP = (
    "Every question goes to all models in the same words: the *base* as it was before tuning, and "
    "the *tuned* one, or those of the server that the page asks. Below an answer its tokens can be "
    "opened, with the probability that the model gave each, deeper in colour where lower. Dashed "
    "ones are coordinates: each is one of 1,024, and its neighbours have a share of the "
    "probability, so that low figures are usual for boxes and for answers with boxes. The demo's "
    "base knows lungs and ten findings, asked for as in `detect ILD`, and mostly answers "
    "`Unknown.` to what else it is asked. In the viewer: `+` `-` zoom, `f` fits, `o` shows a pixel "
    "as one, `i` inverts, `w` resets the window, `b` takes boxes off and on, arrows move; the "
    "right mouse button drags the window."
)
# What page.js fills in.
_VIEWER = '<div class="host"></div>'
_HISTORY = (
    '<div class="inside" hidden><h2>Asked in this tab</h2><ol class="kept"></ol></div>'
    '<div class="past" role="region" aria-label="An earlier answer" hidden></div>'
)
_READY = "Choose an image, ask a question."
# What the browser may load. Gradio's own page needs inline scripts and compiles templates.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; frame-ancestors 'none'; "
    "base-uri 'self'; form-action 'self'"
)
_SECONDS_BETWEEN_SIGNS = 0.5
_HOURS_KEPT = 1
_MOST_WAITING = 100  # events
_LOG = logging.getLogger(__name__)


def serve(
    models: Models, listening: socket.socket, folder: Path, max_megabytes: int, hosts: list[str]
) -> None:
    """Serves the page until Ctrl-C, from now on, ready or not. Prints its address.

    Args:
        folder: for uploads and examples; the caller removes it.
        max_megabytes: of an upload.
        hosts: names by which the server is known; the address has the first one.
    """
    uploads = folder / "uploads"
    gradio = import_gradio(uploads)
    import fastapi

    from cxrjax.apps import page_server
    from cxrjax.apps.demo.gate import Gate

    examples = rendering.render_examples(folder / "examples")
    viewer = viewer_parts()
    most = max_megabytes * page_server.MIB
    blocks = make_page(gradio, models, examples, uploads, most)
    app = gradio.mount_gradio_app(
        fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        blocks,
        path="",
        app_kwargs={"docs_url": None, "redoc_url": None, "openapi_url": None},
        footer_links=[],
        run_history=False,
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        max_file_size=f"{max_megabytes}mb",
        theme=gradio.themes.Base(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css="\n".join((read_text(_FOLDER / "page.css"), viewer.style)),
        head="".join(f"<script>{one}</script>" for one in (viewer.script, read_text(_SCRIPT))),
    )
    # Gradio looks where the files of requests are only then. `Gate` does in any case.
    blocks.has_launched = True
    limits = page_server.Limits(
        requests=64, body_bytes=most + page_server.MIB, body_seconds=600, answer_seconds=900
    )
    token = secrets.token_urlsafe(16)
    gate = Gate(app, blocks, uploads, most)
    guard = page_server.Guard(gate, limits, {"reader": token}, hosts, _POLICY)
    threading.Thread(target=models.watch, daemon=True).start()
    print(f"{page_server.link(listening, hosts[0], token)} (Ctrl-C stops)", flush=True)
    page_server.serve(guard, listening, limits)


def make_page(
    gradio: Any,
    models: Models,
    examples: list[rendering.DemoExample],
    uploads: Path,
    most_bytes: int,
) -> Any:
    """The page as Gradio's `Blocks`.

    Args:
        uploads: the folder of the only files that are opened.
        most_bytes: that one of them may have.
    """
    from cxrjax.apps.demo.gate import GONE, upload_at  # it needs what Gradio brings

    numbers = itertools.count(1)  # of what is shown
    truths = {example.sha256: example.truth for example in examples}

    def named(upload: str) -> NamedFile:
        path = upload_at(uploads, upload, most_bytes)
        if path is None:
            raise UserError(GONE)
        return NamedFile(path, path.name)

    def told(error: Exception) -> str:
        if isinstance(error, UserError | ForeignError):
            return rendering.render_status(str(error), problem=True)
        _LOG.error("%s: %s", type(error).__name__, first_line(error))
        return rendering.render_status(
            "This cannot be answered; the program's output says why.", True
        )

    def look(upload: str | None) -> tuple[str, str, str]:
        """The image, no answers, and what can be done with it."""
        if upload is None:
            return "", "", rendering.render_status(_READY)
        try:
            picture = rendering.open_picture(named(upload))
        except Exception as error:
            return "", "", told(error)
        shown = rendering.render_picture(picture, {}, number=next(numbers))
        if empty := remarks.of_picture(picture.notes):
            return shown, "", rendering.render_status(empty, problem=True)
        return shown, "", rendering.render_status("Ask a question about it.")

    def answer(upload: str | None, question: str) -> Iterator[tuple[Any, Any, str]]:
        """Signs of life, then the image with boxes, the answers, and what was asked."""
        as_is = gradio.skip()
        try:
            if upload is None:
                raise UserError("no image: choose a PNG, JPEG or DICOM file, or an example")
            while models.progress:
                text = f"The models are being compiled ({models.progress}); then comes your answer."
                yield as_is, as_is, rendering.render_status(text)
                models.wait(_SECONDS_BETWEEN_SIGNS)
            models.wait(0)
            yield as_is, as_is, rendering.render_status("The models are reading the image.")
            file = named(upload)
            picture = rendering.open_picture(file)
            answers = models.ask(file, question)
        except Exception as error:
            yield as_is, "", told(error)
            return
        truth = rendering.asked_about(truths.get(file_sha256(file.path), ()), question)
        number = next(numbers)
        about = remarks.of_picture(picture.notes), remarks.of_question(question)
        said = rendering.render_answers(answers, question, about, number)
        shown = rendering.render_picture(picture, answers, truth, number)
        yield shown, said, rendering.render_status(f"Asked: {question}")

    def until_ready() -> Iterator[str]:
        while models.progress:
            text = f"The models are being compiled ({models.progress}); the demo's take a minute."
            yield rendering.render_status(text)
            models.wait(_SECONDS_BETWEEN_SIGNS)
        yield rendering.render_status(_READY)

    def pick(example: rendering.DemoExample) -> tuple[str, str]:
        return str(example.path), example.question

    plain = {"apply_default_css": False, "padding": False}
    cleaned = (_HOURS_KEPT * 3600, _HOURS_KEPT * 3600)
    with gradio.Blocks(title=_TITLE, analytics_enabled=False, delete_cache=cleaned) as blocks:
        where = _AWAY.format(", ".join(models.elsewhere)) if models.elsewhere else _HERE
        warning = _WARNING.format(where=where)
        gradio.Markdown(f"# {_TITLE}\n\n{warning}", elem_id="warning")
        with gradio.Row():
            with gradio.Column(scale=7, min_width=300):
                upload = gradio.File(label="X-ray: PNG, JPEG or DICOM", height=140, elem_id="xray")
                question = gradio.Textbox(
                    label="Question",
                    placeholder="Where is the Cardiomegaly?",
                    max_length=LONGEST_QUESTION,
                    elem_id="question",
                )
                ask = gradio.Button("Ask the models", variant="primary", elem_id="ask")
                status = gradio.HTML(rendering.render_status(_READY), elem_id="status", **plain)
                gradio.HTML(_VIEWER, elem_id="viewer", **plain)
                picture = gradio.HTML(elem_id="picture", **plain)
            with gradio.Column(scale=6, min_width=300):
                answers = gradio.HTML(elem_id="answers", **plain)
                gradio.HTML(_HISTORY, elem_id="history", **plain)
                gradio.Markdown(
                    "Examples: held-out radiographs with simulated lesions, shown with their truth"
                )
                with gradio.Row(elem_id="examples"):
                    buttons = [gradio.Button(e.question, icon=e.path) for e in examples]
                gradio.Markdown(_HELP)
        shown = [picture, answers, status]
        # Own signs of life in place of Gradio's; nothing for other programs to call.
        hidden = {"show_progress": "hidden", "api_visibility": "private"}
        blocks.load(until_ready, None, status, concurrency_limit=20, **hidden)
        looking = {"inputs": upload, "outputs": shown, "concurrency_id": "look", **hidden}
        upload.upload(look, **looking)
        upload.clear(look, **looking)
        asking = {"inputs": [upload, question], "outputs": shown, "concurrency_id": "ask", **hidden}
        ask.click(answer, **asking)
        question.submit(answer, **asking)
        for button, example in zip(buttons, examples, strict=True):
            chosen = functools.partial(pick, example)
            button.click(chosen, None, [upload, question], **hidden).then(answer, **asking)
    return blocks.queue(max_size=_MOST_WAITING)
