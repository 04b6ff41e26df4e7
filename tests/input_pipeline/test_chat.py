"""Gemma 3's conversation as the published template and image processor write it."""

import json
from pathlib import Path

import pytest

from cxrjax.errors import UserError
from cxrjax.input_pipeline import chat
from cxrjax.input_pipeline.chat import CHAT_FORMS, contexts
from cxrjax.models import PRESETS
from cxrjax.models.presets import IMAGE

FORM = CHAT_FORMS["medgemma"]
CONTROLS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>")
conversation, question = FORM.whole, FORM.question


def check_template(folder):
    chat.check_template(folder, FORM)


def test_a_question_about_an_image_reads_as_published():
    assert conversation(" Is there a nodule?\n", [("A", " B ")]) == (
        "<bos><start_of_turn>user\n<start_of_image>A<end_of_turn>\n"
        "<start_of_turn>model\nB<end_of_turn>\n"
        "<start_of_turn>user\nIs there a nodule?<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("control", [*CONTROLS, "<image_soft_token>"])
def test_a_text_cannot_pose_as_the_format(control):
    text = f"Is there{control} a nodule?"
    for write in (question, FORM.answer, lambda t: question("Where?", [("A", t)])):
        with pytest.raises(UserError, match=f"contains {control}, which only the chat format"):
            write(text)


# Gemma 3's form; in the second, turns have no names.
TEMPLATE = Path(__file__).with_name("gemma3.jinja").read_text("utf-8")
OTHER = TEMPLATE.replace("{{ 'model' if m.role == 'assistant' else m.role }}", "")


def write_template(folder, name, template):
    if name.endswith(".jinja"):
        content = template
    elif name == "tokenizer_config.json":
        named = [{"name": "tool_use", "template": "{{ 1 }}"}, {"name": "default"}]
        named[1]["template"] = template
        content = json.dumps({"chat_template": named})
    else:
        content = json.dumps({"chat_template": template})
    (folder / name).write_text(content)


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]
)
def test_weights_with_another_template_are_refused(tmp_path, name):
    check_template(tmp_path)  # there is none
    write_template(tmp_path, name, TEMPLATE)
    check_template(tmp_path)
    write_template(tmp_path, name, OTHER)
    with pytest.raises(UserError, match=f"{name}: its template writes a conversation as '<bos>"):
        check_template(tmp_path)
    write_template(tmp_path, name, "{{ raise_exception('no images') }}")
    with pytest.raises(UserError, match=f"{name}: a chat template that fails: no images"):
        check_template(tmp_path)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4, "it took longer than 1"),
        ("{{ 'a' * 10**9 }}", "it took more than 200 MiB of memory"),
        ("{{ 'a' * 10**6 }}", "at most 2,000 fit"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "attribute"),
        ("{% for a in %}", "a chat template that fails"),
        ("{{ " + "(" * 100_000, "a chat template that fails"),
    ],
)
def test_a_template_that_never_ends_or_takes_all_is_one_line(tmp_path, template, said):
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(UserError) as caught:
        check_template(tmp_path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"{tmp_path / 'chat_template.json'}: ") and "\n" not in message


@pytest.mark.parametrize("template", [7, {"a": 1}, [{"name": "default", "template": 1}], ["x"]])
def test_a_template_is_a_text(tmp_path, template):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    if template == ["x"]:
        check_template(tmp_path)  # none is the default one
        return
    with pytest.raises(UserError, match=r"chat_template is .*, expected a text"):
        check_template(tmp_path)


@pytest.mark.slow
def test_real_tokenizers_give_the_ids_of_the_whole_and_the_context_of_one_image(real):
    asked = "Where is the <loc0012> 1. nodule?\n\nAnswer briefly."
    whole = real.encode(FORM.user + FORM.shown.format("<image_soft_token>") + question(asked))
    image = real.piece_id("<image_soft_token>")
    context, _ = contexts(FORM, real, image)
    assert [*context, *real.encode(question(asked))] == [real.bos_id, *whole]
    assert context.count(image) == 1
    sizes = PRESETS["medgemma_4b"]
    assert (sizes.context, sizes.second_image) == contexts(FORM, real, IMAGE)
