"""Files that go out load in transformers and PEFT, and do there what they do here; and back in."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from bench.fuzz.drawn_configs import NO_LOC
from cxrjax.models import LoRAConfig, apply_lora
from cxrjax.models.hf_export import hf_tensors, write_shards
from cxrjax.models.hf_import import open_checkpoint, read_parameters
from cxrjax.models.hf_layout import published_prefixes
from cxrjax.models.lora import merge_lora
from cxrjax.models.peft import LOC_DELTA, adapter_parameters, read_peft, save_peft
from tests.models.sizes import arrays, with_arrays
from tests.parity.conftest import check_same_adapter, copied, with_loc
from tests.parity.their_masks import as_it_generates

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

KINDS = ("paligemma", "paligemma2", "gemma3", "gemma3_text", *NO_LOC)


def _load_hf(directory, kind, **options):
    import transformers as t

    if kind == "gemma3_text":
        return t.AutoModelForCausalLM.from_pretrained(directory, **options)
    loaded = t.AutoModelForImageTextToText.from_pretrained(directory, **options)
    # With options it is a pair.
    return as_it_generates(loaded) if kind == "gemma4_unified" and not options else loaded


def _adapted(pair, **options):
    """The pair's model with random adapters in both towers, and moved <loc> rows."""
    targets = ["decoder/layers/attn/(q|v)_proj", "decoder/layers/mlp/down_proj"]
    vision = pair.model.config.vision
    if vision is not None and vision.depth:  # which has no layers
        targets.append("vision/layers/attn/(q|qkv)_proj")
    model = copied(pair.model)
    config = LoRAConfig(
        rank=3, alpha=4.5, targets=targets, rank_pattern={"down_proj": 2}, **options
    )
    apply_lora(model, config, nnx.Rngs(0))
    if pair.kind not in NO_LOC:
        model.decoder.embedder.add_loc_delta()
    rng = np.random.default_rng(1)
    values = {
        path: 0.2 * rng.normal(size=array.shape).astype(np.float32)
        for path, array in arrays(model).items()
        if path.endswith(("/b", "loc_delta"))
    }
    return with_arrays(model, values)


@nnx.jit
def _logits(model, given, context):
    return model.logits(model(*given, context_tokens=context))


def _compare(close, model, hf, questions, kind):
    """Logits of the answers, row by row."""
    given, context = questions.ours()
    ours = np.asarray(_logits(model, given, context["context_tokens"]))
    with torch.no_grad():
        theirs = hf(**questions.theirs(kind)).logits.numpy()
    num_context = questions.context.shape[1]
    for row, (prefix, answer) in enumerate(zip(questions.prefix, questions.answers, strict=True)):
        start = num_context + len(prefix)
        close(ours[row, 0, : len(answer)], theirs[row, start - 1 : start - 1 + len(answer)])


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_round_trip(make_pair, tmp_path, kind):
    """Under the published names transformers reads it (test_random_configs.py has its own)."""
    pair = make_pair(kind)
    sizes = pair.model.config
    write_shards(tmp_path, hf_tensors(pair.model, sizes, published_prefixes(sizes)), 50_000)
    (tmp_path / "config.json").write_text((pair.directory / "config.json").read_text())
    hf, info = _load_hf(tmp_path, kind, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = pair.hf.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in hf.state_dict().items())


def _peft(pair, directory, **options):
    import peft

    hf = _load_hf(pair.directory, pair.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # PEFT 0.21 asks transformers 5.23 for it whatever the adapter.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        return peft.PeftModel.from_pretrained(hf, directory, **options).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_our_adapters_and_merges_them_alike(make_pair, close, tmp_path, kind):
    pair = make_pair(kind)
    model = _adapted(pair, use_dora=kind == "gemma3")
    save_peft(tmp_path / "adapter", model)
    theirs = _peft(pair, tmp_path / "adapter")
    questions = with_loc(pair.questions(seed=3))
    _compare(close, model, theirs, questions, kind)

    merged = copied(model)
    merge_lora(merged)
    sizes = merged.config
    write_shards(tmp_path, hf_tensors(merged, sizes, published_prefixes(sizes)))
    (tmp_path / "config.json").write_text((pair.directory / "config.json").read_text())
    hf = _load_hf(tmp_path, kind)
    _compare(close, model, hf, questions, kind)
    state = theirs.merge_and_unload().state_dict()
    for name, value in hf.state_dict().items():
        close(value.numpy(), state[name].numpy(), 1e-5)


_ROWS = Path(__file__).with_name("adapters_of_peft.jsonl").read_text().splitlines()


@pytest.mark.parametrize(("kind", "options"), map(json.loads, _ROWS))
def test_adapters_that_peft_trained(make_pair, close, tmp_path, kind, options):
    import peft

    pair = make_pair(kind)
    saved = options.get("modules_to_save", ())
    rows = kind not in NO_LOC and not {"embed_tokens", "lm_head"} & set(saved)
    torch.manual_seed(0)
    theirs = peft.get_peft_model(
        _load_hf(pair.directory, kind),
        peft.LoraConfig(
            r=3,
            lora_alpha=7,
            init_lora_weights=False,
            trainable_token_indices=list(range(100, 1124)) if rows else None,
            task_type="CAUSAL_LM",
            **options,
        ),
    ).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "trainable_tokens_delta" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "modules_to_save" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    adapter = read_peft(tmp_path, pair.model.config)
    model = copied(pair.model)
    apply_lora(model, adapter.config, nnx.Rngs(0))
    if rows:
        model.decoder.embedder.add_loc_delta()
    if adapter.untied:
        model.untie()
    trained = adapter_parameters(model, adapter)
    model = with_arrays(model, trained)
    _compare(close, model, theirs, with_loc(pair.questions(seed=5)), kind)

    whole = [path for path in trained if "/lora/" not in path and path != LOC_DELTA]
    assert bool(whole) == bool(saved)
    save_peft(tmp_path / "back", model, use_rslora=adapter.config.use_rslora, whole=whole)
    if whole:
        _compare(close, model, _peft(pair, tmp_path / "back"), pair.questions(seed=6), kind)
        merge_lora(model)
        sizes = model.config
        (tmp_path / "m").mkdir()
        write_shards(tmp_path / "m", hf_tensors(model, sizes, published_prefixes(sizes)))
        (tmp_path / "m/config.json").write_text((pair.directory / "config.json").read_text())
        _compare(close, model, _load_hf(tmp_path / "m", kind), pair.questions(seed=6), kind)
        again = read_parameters(open_checkpoint(tmp_path / "m"), sizes)
        assert all(np.array_equal(again[path], array) for path, array in arrays(model).items())
    check_same_adapter(tmp_path, tmp_path / "back")
    stated, again = (
        json.loads((path / "adapter_config.json").read_text())
        for path in (tmp_path, tmp_path / "back")
    )
    same = ("r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora", "task_type", "bias")
    assert {key: again[key] for key in same} == {key: stated[key] for key in same}
