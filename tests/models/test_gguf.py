"""Gemma 3 GGUF files: names, shapes, conventions, configuration, tokenizer, and what is refused."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants
from sentencepiece import sentencepiece_model_pb2

from cxrjax.errors import UserError
from cxrjax.input_pipeline.tokenizer import GEMMA3_LOC_START, Tokenizer, load_tokenizer
from cxrjax.models.gguf import GGUFFile

WIDTH, LAYERS = 64, 7
STATED = json.loads(Path(__file__).with_name("gguf_configs.json").read_text())
SHIPPED = Path(__file__).parents[2] / "data/demo_base/tokenizer.model"
# GGUF name -> (Hugging Face name, shape as PyTorch has it).
LAYER = {name: (theirs, tuple(shape)) for name, (theirs, shape) in STATED["layers"].items()}
TYPES = {
    "attn_q": GGMLQuantizationType.Q8_0,
    "attn_k": GGMLQuantizationType.F16,
    "attn_v": GGMLQuantizationType.BF16,
    "ffn_up": GGMLQuantizationType.Q5_0,
}


def llama_cpp_kind(piece) -> int:
    """A piece's kind in the file: symbols are called control."""
    return 3 if piece.type in (piece.CONTROL, piece.UNKNOWN, piece.USER_DEFINED) else piece.type


def write(path, changes=None, extra=None, architecture="gemma3", tokenizer=True) -> dict:
    """A file with random weights as llama.cpp's converter writes it; returns the weights of it.

    Args:
        changes: metadata keys to set otherwise; None leaves one out.
        extra: tensors besides, name -> array.
    """
    writer = GGUFWriter(path, architecture)
    metadata = STATED["metadata"] | (changes or {})
    for key, value in metadata.items():
        key = key if "split" in key else f"{architecture}.{key}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(key, value)
    if tokenizer:
        proto = sentencepiece_model_pb2.ModelProto.FromString(SHIPPED.read_bytes())
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece.piece for piece in proto.pieces])
        writer.add_token_scores([piece.score for piece in proto.pieces])
        writer.add_token_types([llama_cpp_kind(piece) for piece in proto.pieces])
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (2048, WIDTH), "output_norm": (WIDTH,)} | {
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, (_, shape) in LAYER.items()
    }
    weights = {}
    for name, shape in shapes.items():
        weight = rng.normal(size=shape).astype(np.float32)
        weights[name] = weight
        # The file's norms include the one that Hugging Face's model adds.
        stored = weight + 1 if name.endswith("norm") else weight
        kind = TYPES.get(name.split(".")[-1], GGMLQuantizationType.F32)
        writer.add_tensor(f"{name}.weight", quants.quantize(stored, kind), raw_dtype=kind)
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write(path)


def test_tensors_come_under_their_hugging_face_names(tiny):
    path, _ = tiny
    file = GGUFFile(path)
    config = file.config()
    shapes = {name: tensor.shape for name, tensor in file.tensors()}
    expected = {"model.embed_tokens.weight": (2048, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in LAYER.values():
            expected[f"model.layers.{layer}.{name}.weight"] = shape
    assert shapes == expected


def test_weights_are_those_that_were_written_and_norms_lose_the_one(tiny):
    path, written = tiny
    read = dict(GGUFFile(path).tensors())
    assert all(tensor.dtype == np.float32 and tensor.flags.writeable for tensor in read.values())
    # Largest error of a rounding: half a step of the block's scale, or of the float's mantissa.
    tolerance = {"attn_q": 0.02, "attn_k": 2e-3, "attn_v": 2e-2, "ffn_up": 0.2}
    for layer in (0, LAYERS - 1):
        for name, (hf_name, _) in LAYER.items():
            found = read[f"model.layers.{layer}.{hf_name}.weight"]
            limit = tolerance.get(name, 1e-6)
            expected = written[f"blk.{layer}.{name}"]
            np.testing.assert_allclose(found, expected, atol=limit, err_msg=name)
            assert name not in tolerance or not np.array_equal(found, expected)
    np.testing.assert_array_equal(read["model.embed_tokens.weight"], written["token_embd"])
    np.testing.assert_allclose(read["model.norm.weight"], written["output_norm"], atol=1e-6)


def test_configuration_and_tokenizer_are_those_it_was_made_from(tiny):
    config = GGUFFile(tiny[0]).config()
    assert config == STATED["tiny"]
    json.dumps(config)
    original, found = load_tokenizer(SHIPPED), GGUFFile(tiny[0]).tokenizer()
    assert found.vocab_size == original.vocab_size
    np.testing.assert_array_equal(found.loc_ids, original.loc_ids)
    for text in ("Where is the <loc0500>?\n  Tràn dịch 2024", "<eos> <seg001>  Nodule/Mass"):
        ids = original.encode(text)
        assert found.encode(text) == ids
        assert found.decode(ids) == text


def test_rope_scaling_output_matrices_and_types_without_dequantisation(tmp_path, tiny, monkeypatch):
    path = tmp_path / "scaled.gguf"
    output = np.ones((2048, WIDTH), np.float32)
    changes = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    write(path, changes, {"output.weight": output}, tokenizer=False)
    file = GGUFFile(path)
    config = file.config()
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(dict(file.tensors())["lm_head.weight"], output)
    monkeypatch.delitem(quants._type_traits, GGMLQuantizationType.Q5_0)
    assert "ffn_up.weight is of type Q5_0, which the package gguf cannot" in refusal(tiny[0])


def refusal(path) -> str:
    """The one line that reading the whole file ends with."""
    with pytest.raises(UserError) as raised:
        file = GGUFFile(path)
        assert file.config() and list(file.tensors())
    message = str(raised.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"architecture": "llama"}, "architecture 'llama', expected 'gemma3'"),
        ({"changes": {"split.count": 3, "split.no": 1}}, "part 1 (from 0) of 3 of a split file"),
        (
            {"changes": {"attention.key_length": None}},
            "gemma3.attention.key_length is None, expected a number",
        ),
        ({"changes": {"rope.freq_base": float("inf")}}, "rope.freq_base is inf, expected a number"),
        *(
            ({"extra": {name: np.ones(32, np.float32)}}, f"tensor '{name}' is not one of Gemma 3's")
            for name in ("blk.0.attn_sinks.weight", "blk.0.attn_q.bias", "v.patch_embd.weight")
        ),
    ],
)
def test_files_of_other_models_are_refused(tmp_path, written, said):
    write(tmp_path / "a.gguf", **written, tokenizer=False)
    assert said in refusal(tmp_path / "a.gguf")


# Within the header, the metadata, the tokenizer, the list of tensors, and the tensors.
@pytest.mark.parametrize("kept", [6, 200, 30_000, 0.2, 0.6, -1])
def test_a_file_cut_short_is_refused(tiny, tmp_path, kept):
    content = tiny[0].read_bytes()
    kept = int(kept * len(content)) if isinstance(kept, float) else kept
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[:kept])
    message = refusal(path)
    assert f"a GGUF file of {path.stat().st_size} bytes that ends too early" in message


def test_what_is_no_gguf_file_or_damaged_is_refused(tmp_path):
    assert "cannot be read: No such file" in refusal(tmp_path / "none.gguf")
    (tmp_path / "a.gguf").write_bytes(b"PK\3\4")
    assert "starts with b'PK\\x03\\x04', expected b'GGUF'" in refusal(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"")
    assert "not a GGUF file" in refusal(tmp_path / "a.gguf")
    path = tmp_path / "damaged.gguf"
    write(path, tokenizer=False)
    content = path.read_bytes()
    place = content.index(b"gemma3", content.index(b"general.architecture"))
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    assert "ends too early or is damaged" in refusal(path)
    write(tmp_path / "a.gguf", tokenizer=False)
    with pytest.raises(UserError, match=r"a\.gguf: tokenizer of kind None, expected 'llama'"):
        GGUFFile(tmp_path / "a.gguf").tokenizer()


# The published weights and tokenizer; data/gemma3/README.md says how to get them.
REAL = Path(os.environ.get("CXRJAX_GEMMA3_GGUF", "data/downloads/gemma3/gemma-3-270m.gguf"))
REAL_JSON = Path(os.environ.get("CXRJAX_GEMMA3_TOKENIZER", "data/downloads/gemma3/tokenizer.json"))


@pytest.fixture(scope="module")
def real() -> GGUFFile:
    if not REAL.is_file():
        pytest.skip(f"no {REAL}: data/gemma3/README.md, or set CXRJAX_GEMMA3_GGUF")
    return GGUFFile(REAL)


@pytest.mark.slow
def test_the_real_270m_has_the_published_sizes(real):
    config = real.config()
    # The published config.json of google/gemma-3-270m.
    expected = STATED["gemma-3-270m"]
    assert {key: config[key] for key in expected} == expected
    full = [k for k, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17]
    count, sizes = 0, {}
    for name, tensor in real.tensors():
        assert np.isfinite(tensor).all(), name
        count += tensor.size
        sizes[name.split(".")[-2]] = float(np.abs(tensor).mean())
    # 168M of embedding and 100M of layers (the model card).
    assert count == 268_098_176
    assert 0.01 < sizes["q_proj"] < 0.1 and sizes["embed_tokens"] < 0.1


@pytest.mark.slow
def test_the_real_file_s_tokenizer_is_the_published_one(real):
    if not REAL_JSON.is_file():
        pytest.skip(f"no {REAL_JSON}: data/gemma3/README.md, or set CXRJAX_GEMMA3_TOKENIZER")
    model, published = real.tokenizer(), load_tokenizer(REAL_JSON)
    # `<image_soft_token>` is the one that a model of text alone lacks.
    assert model.vocab_size == published.vocab_size - 1 == 262_144
    assert model.loc_ids[0] == GEMMA3_LOC_START
    same = [all_pieces(model, range(262_144)), all_pieces(published, range(262_144))]
    assert same[0] == same[1]
    rng = np.random.default_rng(0)
    words = [piece.replace("▁", " ") for piece in same[0]]
    words += [" " * 2, " " * 5, "\n" * 3, "\t", "<loc0123>", "<loc_691_1375_1653_1831>", "<eos>"]
    for _ in range(3000):
        text = "".join(words[i] for i in rng.integers(0, len(words), rng.integers(1, 7)))
        ids = model.encode(text)
        assert ids == published.encode(text), text
        assert model.decode(ids) == published.decode(ids), text
    for count in range(1, 70):
        for character in " \n\t":
            text = f"the{character * count}lung"
            assert model.encode(text) == published.encode(text), (character, count)


def all_pieces(tokenizer: Tokenizer, ids: range) -> list[str]:
    return [tokenizer._format.piece_of(piece_id) for piece_id in ids]
