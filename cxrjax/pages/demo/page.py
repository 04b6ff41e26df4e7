"""The demo page in Gradio, which is imported here alone, kept to this machine and served."""

import functools
import ipaddress
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError, optional
from cxrjax.files import file_sha256
from cxrjax.pages.demo.answers import LONGEST_QUESTION, Models, NamedFile
from cxrjax.pages.demo.rendering import (
    DemoExample,
    asked_about,
    open_picture,
    render_answers,
    render_examples,
    render_picture,
    render_status,
)


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


_CSS = Path(__file__).parent / "page.css"
_TITLE = "Ask about an X-ray"
_WARNING = (
    "**Research software. Not a medical device.** Not for diagnosis, treatment or advice. Answers "
    "and boxes may be wrong however high their probability; the demo's models have seen synthetic "
    "pictures alone and cannot read a real radiograph. Pictures stay on the machine that serves "
    "this page, until it is stopped."
)
_HELP = (
    "Every question goes to both models in the same words: the *base* as it was before tuning, and "
    "the *tuned* one. Below an answer are its tokens with the probability that the model gave "
    "each, deeper in colour where lower. Dashed ones are coordinates: each is one of 1,024, and "
    "its neighbours have a share of the probability, so that low figures are usual for boxes and "
    "for answers with boxes. The demo's base has only ever read requests such as `detect ILD`."
)
_READY = "Choose a picture, ask a question."
# What the browser may load. Gradio's own page needs inline scripts and compiles templates.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; frame-ancestors 'none'; "
    "base-uri 'self'; form-action 'self'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
_SECONDS_BETWEEN_SIGNS = 0.5
_HOURS_KEPT = 1


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve at; port 0 takes any free one.

    Raises:
        UserError: the address is in use or not this machine's.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, OverflowError) as error:
        raise UserError(
            f"{host}:{port}: cannot serve there: {error}; choose another --port or --host"
        ) from None


def address(listening: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(models: Models, listening: socket.socket, folder: Path, max_megabytes: int) -> None:
    """Serves the page until Ctrl-C, and compiles the models meanwhile.

    Args:
        folder: for uploads and examples; the caller removes it.
        max_megabytes: of an upload.
    """
    gradio = import_gradio(folder / "uploads")
    import fastapi
    import uvicorn
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    examples = render_examples(folder / "examples")
    threading.Thread(target=models.compile, daemon=True).start()
    # Without pages of its own: they come with scripts from elsewhere.
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_WithHeaders)
    host = listening.getsockname()[0]
    if ipaddress.ip_address(host).is_loopback:
        # No page of another site gets in by a name that it has pointed at this machine.
        allowed = ["localhost", host, f"[{host}]"]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed)
    app = gradio.mount_gradio_app(
        app,
        make_page(gradio, models, examples),
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
        css_paths=_CSS,
    )
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


def make_page(gradio: Any, models: Models, examples: list[DemoExample]) -> Any:
    """The page as Gradio's `Blocks`."""
    truths = {example.sha256: example.truth for example in examples}

    def look(upload: str | None) -> tuple[str, str, str]:
        """The picture, no answers, and what can be done with it."""
        if upload is None:
            return "", "", render_status(_READY)
        try:
            picture = open_picture(_named(upload))
        except UserError as error:
            return "", "", render_status(str(error), problem=True)
        return render_picture(picture, {}), "", render_status("Ask a question about it.")

    def answer(upload: str | None, question: str) -> Iterator[tuple[Any, Any, str]]:
        """Signs of life, then the picture with boxes, the answers, and what was asked."""
        as_is = gradio.skip()
        try:
            if upload is None:
                raise UserError("no picture: choose a PNG, JPEG or DICOM file, or an example")
            while models.progress:
                text = f"The models are being compiled ({models.progress}); then comes your answer."
                yield as_is, as_is, render_status(text)
                models.wait(_SECONDS_BETWEEN_SIGNS)
            models.wait(0)
            yield as_is, as_is, render_status("Both models are reading the picture.")
            file = _named(upload)
            picture = open_picture(file)
            answers = models.ask(file, question)
        except UserError as error:
            yield as_is, "", render_status(str(error), problem=True)
            return
        truth = asked_about(truths.get(file_sha256(file.path), ()), question)
        shown = render_picture(picture, answers, truth)
        yield shown, render_answers(answers), render_status(f"Asked: {question}")

    def until_ready() -> Iterator[str]:
        while models.progress:
            text = f"The models are being compiled ({models.progress}); the demo's take a minute."
            yield render_status(text)
            models.wait(_SECONDS_BETWEEN_SIGNS)
        yield render_status(_READY)

    def pick(example: DemoExample) -> tuple[str, str]:
        return str(example.path), example.question

    plain = {"apply_default_css": False, "padding": False}
    cleaned = (_HOURS_KEPT * 3600, _HOURS_KEPT * 3600)
    with gradio.Blocks(title=_TITLE, analytics_enabled=False, delete_cache=cleaned) as blocks:
        gradio.Markdown(f"# {_TITLE}\n\n{_WARNING}", elem_id="warning")
        with gradio.Row():
            with gradio.Column(scale=5, min_width=300):
                upload = gradio.File(label="X-ray: PNG, JPEG or DICOM", height=140, elem_id="xray")
                question = gradio.Textbox(
                    label="Question",
                    placeholder="Where is the Cardiomegaly?",
                    max_length=LONGEST_QUESTION,
                    elem_id="question",
                )
                ask = gradio.Button("Ask both models", variant="primary", elem_id="ask")
                status = gradio.HTML(render_status(_READY), elem_id="status", **plain)
                picture = gradio.HTML(elem_id="picture", **plain)
            with gradio.Column(scale=6, min_width=300):
                answers = gradio.HTML(elem_id="answers", **plain)
                gradio.Markdown("Examples: synthetic radiographs, shown with their truth")
                with gradio.Row(elem_id="examples"):
                    buttons = [gradio.Button(e.question, icon=e.path) for e in examples]
                gradio.Markdown(_HELP)
        shown = [picture, answers, status]
        # Own signs of life in place of Gradio's; nothing for other programs to call.
        hidden = {"show_progress": "hidden", "api_visibility": "private"}
        blocks.load(until_ready, None, status, concurrency_limit=None, **hidden)
        upload.upload(look, upload, shown, **hidden)
        upload.clear(look, upload, shown, **hidden)
        asking = {"inputs": [upload, question], "outputs": shown, **hidden}
        ask.click(answer, **asking)
        question.submit(answer, **asking)
        for button, example in zip(buttons, examples, strict=True):
            chosen = functools.partial(pick, example)
            button.click(chosen, None, [upload, question], **hidden).then(answer, **asking)
    return blocks


def _named(upload: str) -> NamedFile:
    path = Path(upload)
    return NamedFile(path, path.name)


class _WithHeaders:
    """Adds `_HEADERS` to every answer, streamed ones as well."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers)
