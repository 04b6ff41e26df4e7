"""`predict --runner=hf` on small random models in folders, beside transformers' own answers."""

import json

import numpy as np
import PIL.Image
import pytest

from cxrjax.commands.predict import main
from cxrjax.errors import UserError
from cxrjax.records import write_records
from tests.asked import asked
from tests.parity.conftest import MODELS

pytestmark = pytest.mark.parity

SIZE, PATCH = 24, 6
_SIZES = MODELS["of test_hf_system"]
# Gemma 3's form, without its escapes.
_CHAT = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n"
    "{% for p in m.content %}{{ '<start_of_image>' if p.type == 'image' else p.text }}{% endfor %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def _tokenizer(added, named=None):
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<eos>", "<bos>", *added]
    vocab = {piece: i for i, piece in enumerate([*special, *alphabet])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        extra_special_tokens=named or added,
    )


def _paligemma(t):
    tokenizer = _tokenizer(["<image>"])
    image = t.SiglipImageProcessor(size={"height": SIZE, "width": SIZE})
    image.image_seq_length = (SIZE // PATCH) ** 2
    processor = t.PaliGemmaProcessor(image, tokenizer)
    # The processor adds the 1,024 location tokens.
    text = _SIZES["text"] | {"model_type": "gemma", "vocab_size": len(processor.tokenizer)}
    config = t.PaliGemmaConfig(
        text_config=text,
        vision_config=_SIZES["vision"] | {"projection_dim": 16, "vision_use_head": False},
        projection_dim=16,
        image_token_index=processor.tokenizer.convert_tokens_to_ids("<image>"),
    )
    return t.PaliGemmaForConditionalGeneration(config), processor


def _gemma3(t):
    names = ["<start_of_image>", "<end_of_image>", "<image_soft_token>", "<start_of_turn>"]
    named = dict(zip(("boi_token", "eoi_token", "image_token"), names[:3], strict=True))
    tokenizer = _tokenizer([*names, "<end_of_turn>"], named)
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids(names), strict=True))
    image = t.Gemma3ImageProcessor(size={"height": SIZE, "width": SIZE})
    processor = t.Gemma3Processor(image, tokenizer, chat_template=_CHAT, image_seq_length=4)
    config = t.Gemma3Config(
        text_config=_SIZES["text"] | {"sliding_window": 512, "query_pre_attn_scalar": 8},
        vision_config=_SIZES["vision"] | {"vision_use_head": False},
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )
    return t.Gemma3ForConditionalGeneration(config), processor


def _llava(t):
    tokenizer = _tokenizer(["<image>"])
    image = t.CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
    )
    processor = t.LlavaProcessor(
        image,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    config = t.LlavaConfig(
        text_config=_SIZES["text"] | {"model_type": "llama"},
        vision_config=_SIZES["vision"] | {"model_type": "clip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    return t.LlavaForConditionalGeneration(config), processor


_MAKE = {"paligemma": _paligemma, "gemma3": _gemma3, "llava": _llava}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`folder(kind)` -> a folder with a small random model and its processor, each made once."""
    pytest.importorskip("torch")
    import torch
    import transformers

    made = {}

    def make(kind):
        if kind not in made:
            torch.manual_seed(0)
            model, processor = _MAKE[kind](transformers)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(0.4 * torch.randn_like(parameter))
            model.generation_config.eos_token_id = 1
            # What a folder says of sampling does not count.
            model.generation_config.do_sample = True
            model.generation_config.temperature = 3.0
            made[kind] = tmp_path_factory.mktemp(kind)
            model.save_pretrained(made[kind])
            processor.save_pretrained(made[kind])
        return made[kind]

    return make


@pytest.fixture
def predict(tmp_path):
    """`predict(*flags, out=...)` -> question id -> line, of five questions about three images."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(1)
    records = []
    for number in range(5):
        path = tmp_path / "images" / f"{number // 2}.png"
        height, width = 30 + number // 2, 44
        if not path.exists():
            pixels = rng.integers(0, 255, (height, width, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(path)
        records.append(
            asked(
                image_id=path.stem,
                image_path=f"images/{path.name}",
                image_hw=(height, width),
                question_id=f"q{number}",
                question="Where?" if number % 2 else "What is abnormal in this radiograph?",
                variables={"finding": "mass"},
            )
        )
    write_records(tmp_path / "questions.jsonl", records)

    def run(*flags, out="p.jsonl"):
        out = tmp_path / out
        main(
            ["--runner=hf", f"--questions={tmp_path / 'questions.jsonl'}", f"--out={out}"]
            + ["--max_answer_tokens=12", *flags]
        )
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return {line["question_id"]: line for line in lines}

    run.records, run.folder = records, tmp_path
    return run


def _expected(folder, records, root, prompt):
    """Text and log-probability of each answer, one at a time, by transformers' own means."""
    import torch
    import transformers

    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    for record in records:
        image = PIL.Image.open(root / record.image_path).convert("RGB")
        text = prompt.format(record.question)
        add = not text.startswith("<bos>")
        inputs = processor(text=text, images=[image], return_tensors="pt", add_special_tokens=add)
        output = model.generate(
            **inputs,
            max_new_tokens=12,
            do_sample=False,
            temperature=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        logprob = sum(
            torch.log_softmax(logits[0].float(), -1)[token].item()
            for token, logits in zip(tokens, output.logits, strict=True)
        )
        kept = [token for token in tokens if token not in (0, 1, 2)]
        yield processor.tokenizer.decode(kept).strip(), logprob, tokens[-1] == 1


_PROMPTS = dict.fromkeys(("paligemma", "llava"), "<image>{}")
_PROMPTS["gemma3"] = (
    "<bos><start_of_turn>user\n<start_of_image>{}<end_of_turn>\n<start_of_turn>model\n"
)


@pytest.mark.parametrize("kind", _MAKE)
def test_batches_answer_as_transformers_does_one_by_one(folder, predict, kind):
    found = predict(f"--folder={folder(kind)}", "--images_per_batch=3")
    expected = _expected(folder(kind), predict.records, predict.folder, _PROMPTS[kind])
    texts = set()
    for record, (text, logprob, ended) in zip(predict.records, expected, strict=True):
        line = found[record.question_id]
        assert line["text"] == text
        assert line["answer_logprob"] == pytest.approx(logprob, abs=1e-3)
        assert line["parse"] == ("ok" if ended else "truncated")
        texts.add(text)
    assert len(texts) > 1  # the image or the question makes a difference


def test_a_system_without_a_chat_template_of_its_own(folder, predict):
    found = predict(f"--folder={folder('llava')}", "--system=llava_med_v1.5")
    prompt = "[INST] <image>\n{} [/INST]"
    expected = _expected(folder("llava"), predict.records[:1], predict.folder, prompt)
    assert found["q0"].get("written", found["q0"]["text"]).strip() == next(expected)[0]


def test_location_tokens_are_text_and_boxes(folder, predict):
    """Location tokens survive decoding; of a random model any four of them are a box or a fault."""
    found = predict(f"--folder={folder('paligemma')}", "--system=paligemma", "--wording=locate")
    assert any("<loc" in line["text"] for line in found.values())
    for line in found.values():
        assert len(line["boxes"]) == len(line["labels"]) == len(line["box_scores"])
        assert all(0 < score < 1 for score in line["box_scores"])


def test_an_answered_question_is_not_asked_again(folder, predict, monkeypatch):
    from cxrjax.evaluation.systems.hf_model import FolderModel

    first = predict(f"--folder={folder('llava')}")
    written = []
    write = FolderModel.write
    monkeypatch.setattr(
        FolderModel, "write", lambda self, *given: written.append(given) or write(self, *given)
    )
    cache = predict.folder / "p.answers.jsonl"
    kept = cache.read_bytes().splitlines(keepends=True)
    assert predict(f"--folder={folder('llava')}") == first and not written
    cache.write_bytes(b"".join(kept[:3]))
    again = predict(f"--folder={folder('llava')}")  # other neighbours in the batch: other rounding
    assert [again[name]["text"] for name in first] == [line["text"] for line in first.values()]
    assert sum(len(given[0]) for given in written) == 2
    predict(f"--folder={folder('llava')}", "--max_answer_tokens=5")
    assert sum(len(given[0]) for given in written) == 7


def test_sampling_is_by_seed(folder, predict, capsys):
    flags = [f"--folder={folder('gemma3')}", "--temperature=1.5", "--seeds=3,4,5"]
    predict(*flags)
    runs = [(predict.folder / f"p.seed{seed}.jsonl").read_text() for seed in (3, 4, 5)]
    assert len(set(runs)) == 3
    assert "3 runs of 5 questions" in capsys.readouterr().out
    (predict.folder / "p.answers.jsonl").unlink()
    predict(*flags)
    again = [(predict.folder / f"p.seed{seed}.jsonl").read_text() for seed in (3, 4, 5)]
    assert again == runs


def test_what_is_no_such_folder(folder, predict, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "nothing"}')
    for flags, said in (
        ([f"--folder={tmp_path}"], r"no config\.json"),
        ([f"--folder={broken}"], "no image-text-to-text model"),
        ([], "needs --folder"),
        ([f"--folder={folder('llava')}", "--system=radfm"], "cannot be run by --runner=hf"),
        ([f"--folder={folder('llava')}", "--temperature=1"], "at least three seeds"),
    ):
        with pytest.raises(UserError, match=said):
            predict(*flags)


def test_unreadable_images_are_lines(folder, predict):
    (predict.folder / "images" / "1.png").write_bytes(b"")
    found = predict(f"--folder={folder('llava')}")
    unreadable = [n for n in range(5) if found[f"q{n}"]["parse"] == "unreadable_image"]
    assert unreadable == [2, 3]
