"""A merged folder gives transformers the answers that our server gives of the run it came from."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.apps.serving.engine import SeenImages
from cxrjax.apps.serving.named_models import open_served
from cxrjax.apps.serving.programs import SlotRequest
from cxrjax.apps.serving.uploads import Uploads
from cxrjax.commands import convert
from cxrjax.images.files import HeldFile
from tests.apps.serving.conftest import running  # noqa: F401 - a fixture
from tests.apps.serving.test_engine import Heard
from tests.asked import asked
from tests.parity.conftest import MODELS, _moved
from tests.test_convert import _trained

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

TOKENIZER = Path(__file__).parents[2] / "data" / "real_base" / "tokenizer.model"
SIDE, PATCH, TOKENS = 24, 6, 12
_SIZES = MODELS["of test_merged_served"]
QUESTIONS = (
    "Where is the right lung?",
    "detect ILD",
    "Is there a nodule in the left lung?",
    "Show me the heart.",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder as PaliGemma is published: weights, configuration, tokenizer, processor."""
    import transformers as t

    folder = tmp_path_factory.mktemp("published")
    (folder / "tokenizer.model").write_bytes(TOKENIZER.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    image = t.SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    image.image_seq_length = (SIDE // PATCH) ** 2
    processor = t.PaliGemmaProcessor(image, t.AutoTokenizer.from_pretrained(folder))
    config = t.PaliGemmaConfig(**_SIZES, image_token_index=processor.image_token_id)
    torch.manual_seed(0)
    _moved(t.PaliGemmaForConditionalGeneration(config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(published, tmp_path_factory):
    """A workdir with adapters and `<loc>` rows on that model."""
    folder = tmp_path_factory.mktemp("run")
    base, workdir = folder / "base", folder / "run"
    convert.main([f"--checkpoint={published}", f"--out={base}"])
    return _trained(base, workdir, "/lora/", "loc_delta", dropout=0.0, scale=0.3)


def _pictures(folder):
    """Files of the model's own size: what resizes alike is compared elsewhere."""
    rng = np.random.default_rng(3)
    for number in range(2):
        path = folder / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(path)
        yield path


def _ours(served, engine, pictures):
    """(prompt, answer) of each question about each picture, as ids."""
    (model,) = served.by_name.values()
    jobs = []
    for path in pictures:
        read = Uploads(0).read(HeldFile(path.name, path.read_bytes()), model.examples, "me")
        for question in QUESTIONS:
            record = asked(split="asked", image_hw=read.size, question=question)
            prompt = model.encoder().encode(record, with_answer=False).prefix
            one = Heard(read.pixels, None, SlotRequest(prompt, free=True, limit=TOKENS))
            one.job.images = SeenImages(path, read.pixels)
            engine.submit("me", [one.job])
            jobs.append((prompt.tolist(), one))
    return [(prompt, [event.token for event in one.wait().events]) for prompt, one in jobs]


def _theirs(folder, pictures):
    """The same, by transformers from the folder alone."""
    import transformers as t

    processor = t.AutoProcessor.from_pretrained(folder)
    model = t.AutoModelForImageTextToText.from_pretrained(folder).eval()
    for path in pictures:
        for question in QUESTIONS:
            image = Image.open(path).convert("RGB")
            inputs = processor(text=f"<image>{question}", images=[image], return_tensors="pt")
            ids = inputs["input_ids"][0].tolist()
            with torch.inference_mode():
                output = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
            prompt = [token for token in ids if token != processor.image_token_id]
            yield prompt, output[0, len(ids) :].tolist()


def test_transformers_answers_from_the_merged_folder_as_our_server_does(
    run,
    running,  # noqa: F811
    tmp_path,
):
    merged = tmp_path / "merged"
    convert.main([f"--checkpoint={run}", "--to=merged", f"--out={merged}"])
    pictures = list(_pictures(tmp_path))
    decoding = {"grammar": "none", "boxes": "greedy", "max_answer_tokens": TOKENS}
    served = open_served(run, "run", {}, slots=3, longest_prompt=24, decoding=decoding)
    engine = running(served.programs)
    ours, theirs = _ours(served, engine, pictures), list(_theirs(merged, pictures))
    assert ours == theirs
    assert len({tuple(answer) for _, answer in ours}) > len(QUESTIONS)
    assert any(len(set(answer)) > 4 for _, answer in ours)
