"""Writes the sound files that attacks begin from, where no sample of the repository will do.

    python -m bench.fuzz.make_corpus

All of it is made up: noise, drawn shapes and sentences of our own.
"""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from bench.fuzz import drawn_configs
from bench.fuzz.targets import CORPUS, ROOT


def put(name: str, data: bytes | str | dict | list) -> None:
    path = CORPUS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, dict | list):
        data = json.dumps(data)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def record(number: int, **fields) -> dict:
    box = [10.0 + number, 12.0, 30.0 + number, 40.0]
    text = f"Yes, there is a nodule at <loc_{10 + number}_12_{30 + number}_40>."
    answer = {"text": text, "labels": ["Nodule/Mass"], "polarity": "pos"}
    answer["boxes_by_image"] = {f"image{number}": [box]}
    return {
        "schema_version": 1,
        "dataset": "vindr_cxr_vqa",
        "split": "validation",
        "patient_id": f"p{number}",
        "image_id": f"image{number}",
        "image_path": f"images/{number}.png",
        "image_hw": [64, 80],
        "question_id": f"q{number}",
        "question": "Is there a nodule?",
        "question_type": "yes_no",
        "variables": {"finding": "Nodule/Mass"},
        "answers": [answer],
        "gt_finding": "Nodule/Mass",
    } | fields


def texts() -> None:
    rows = [record(0), record(1), record(2, history=[], choices=["A", "B"])]
    put("records/records.jsonl", lines(rows))
    turn = {"question_id": "q0", "question": "Is it left?", "answer": "Yes."}
    put("questions/questions.jsonl", lines([record(0, answers=[], history=[turn]), record(1)]))
    bare = {"question_id": "q0", "text": "Yes, at <loc0100><loc0200><loc0300><loc0400> nodule"}
    full = {"question_id": "q1", "text": "No.", "boxes": [[0.1, 0.2, 0.5, 0.6]], "labels": ["a"]}
    full |= {"box_scores": [0.5], "answer_logprob": -1.5, "parse": "ok", "repaired_boxes": 1}
    put("predictions/predictions.jsonl", lines([bare, full | {"heat_map": [[0, 1], [1, 0]]}]))
    own = [record(n, dataset="custom", split=s, provenance=None) for n, s in enumerate("aab")]
    for number, row in enumerate(own):
        row |= {"image_path": f"images/{number % 2}.png", "variables": None}
    put("own_records/records.jsonl", lines([{k: v for k, v in r.items() if v} for r in own]))
    put("own_records/unsplit.jsonl", lines([r | {"split": ""} for r in own]))
    for number in range(2):
        shade = np.random.default_rng(number).integers(0, 255, (64, 80), np.uint8)
        put(f"own_records_images/images/{number}.png", picture(shade, "PNG"))
    put("splits/splits.json", {"train": ["a", "b"], "validation": ["c"]})
    from cxrjax.evaluation.run_record import split_hashes

    hashes = split_hashes(CORPUS / "records" / "records.jsonl")
    entry = {"split_sha256": hashes["validation"], "questions": 3}
    put("manifest/manifest.json", {"dataset": "x", "seed": 0, "splits": {"validation": entry}})
    from cxrjax.training.config_file import load_config

    put("run_config/config.json", load_config(f"{ROOT}/configs/mixture.py").to_json())
    figures = [{"step": n, "train/loss": 1.0 / n, "detection/f1@0.3": None} for n in (1, 2, 3, 4)]
    put("metrics_log/metrics.jsonl", lines(figures))
    put("base_model/model.json", (ROOT / "data/demo_base/model.json").read_bytes())
    put("checksums/checksums.json", {"sha256": {"params/a.txt": "ca978112ca1bbdca" * 4}})
    answer = {"text": '{"city": "Hue"}', "finish_reason": "stop", "refusal": None, "model": "m"}
    answer |= {"input_tokens": 10, "output_tokens": 3, "logprob": None}
    put("answer_cache/cache.jsonl", lines([{"key": "0" * 64, **answer}]))
    judged = {"task": "relative_score", "failure": None, "ratio_reference_first": 0.5}
    judged |= {"surrogate": False, "judge": "j", "system": "s", "question_id": "q0", "answer": 5}
    put("judgements/judgements.jsonl", lines([judged, judged | {"question_id": "q1"}]))
    from cxrjax.apps.review.sheet import DIMENSIONS, LEVELS, NOT_APPLICABLE

    head = ",".join(("question_id", "has_box", "mark", *DIMENSIONS, "comment"))
    rows = [f"q0,yes,5,{','.join([LEVELS[0]] * 3)},good", f"q1,no,3,{LEVELS[1]},{LEVELS[2]},"]
    put("sheets/sheet.csv", "\n".join([head, rows[0], rows[1] + NOT_APPLICABLE + ",", ""]))
    put("tables/sizes.csv", "image_id,height,width\nimage0,64,80\nimage1,60,70\n")
    rows = b"dicom_id,Rows,Columns\n" + b"".join(b"a%d,%d,80\n" % (n, n + 9) for n in range(30))
    put("packed_tables/mimic.csv.gz", gzip.compress(rows, mtime=0))
    put("packed_tables/sizes.csv.gz", gzip.compress(b"image_id,height,width\na,64,80\n", mtime=0))
    template = (
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"
        "{{ m['content'][0]['text'] }}<end_of_turn>\n{% endfor %}"
    )
    put("chat_template/chat_template.jinja", template)
    put("chat_template/chat_template.json", {"chat_template": template})
    loops = "{% for i in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3
    put("chat_template/tokenizer_config.json", {"chat_template": loops})


def picture(pixels: np.ndarray, kind: str, mode: str | None = None, **options) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(out, kind, **options)
    return out.getvalue()


def images() -> None:
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 255, (32, 32), np.uint8)
    colour = rng.integers(0, 255, (32, 32, 3), np.uint8)
    put("images/grey.png", picture(grey, "PNG"))
    put("images/deep.png", picture(rng.integers(0, 65535, (24, 32)).astype(np.uint16), "PNG"))
    put("images/colour.png", picture(colour, "PNG"))
    put("images/palette.png", picture(colour, "PNG", "P", transparency=3))
    put("images/alpha.png", picture(colour, "PNG", "RGBA"))
    exif = Image.Exif()
    exif[274] = 6
    put("images/grey.jpg", picture(grey, "JPEG"))
    put("images/turned.jpg", picture(colour, "JPEG", exif=exif))
    put("images/progressive.jpg", picture(colour, "JPEG", progressive=True))
    put("images/cmyk.jpg", picture(colour, "JPEG", "CMYK"))
    dicoms(grey, colour)


def dicoms(grey: np.ndarray, colour: np.ndarray) -> None:
    import tempfile

    from pydicom import uid
    from pydicom.encaps import encapsulate

    from tests.images.test_dicom import dataset_of, lossless_jpeg, lut_sequence, ramp, save

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def keep(name: str, dataset, syntax=uid.ExplicitVRLittleEndian) -> None:
            put(f"dicom/{name}.dcm", save(place, dataset, syntax).read_bytes())

        window = {"WindowCenter": 100, "WindowWidth": 200}
        small = ramp(12)[:32, :32]
        keep("explicit", dataset_of(small, 12, **window))
        keep("implicit", dataset_of(small, 12, RescaleSlope=-2), uid.ImplicitVRLittleEndian)
        keep("deflated", dataset_of(small, 12), uid.DeflatedExplicitVRLittleEndian)
        keep("rle", dataset_of(small, 12, **window), uid.RLELossless)
        keep("jpeg2000", dataset_of(small, 12, **window), uid.JPEG2000Lossless)
        lut = lut_sequence(0, list(range(64)), 8)
        keep("lut", dataset_of(small, 12, VOILUTSequence=lut))
        keep("signed", dataset_of(small.astype(np.int16) - 900, 12, PixelPaddingValue=-900))
        rgb = dataset_of(grey, 8, SamplesPerPixel=3, PhotometricInterpretation="RGB")
        rgb.PlanarConfiguration = 0
        rgb.PixelData = colour.tobytes()
        keep("rgb", rgb)
        for name, frame, syntax, bits in (
            ("jpeg", picture(grey, "JPEG"), uid.JPEGBaseline8Bit, 8),
            ("lossless", lossless_jpeg(small, 12), uid.JPEGLosslessSV1, 12),
        ):
            coded = dataset_of(grey if bits == 8 else small, bits, **window)
            coded.PixelData = encapsulate([frame])
            keep(name, coded, syntax)


def report_xml(number: int) -> bytes:
    return (
        f'<?xml version="1.0" encoding="utf-8"?><eCitation><uId id="CXR{number}"/>'
        '<AbstractText Label="FINDINGS">The heart is normal.</AbstractText>'
        '<AbstractText Label="IMPRESSION">No disease.</AbstractText>'
        f'<parentImage id="CXR{number}_1"></parentImage></eCitation>'
    ).encode()


def archives() -> None:
    put("openi/1.xml", report_xml(1))
    for name, members in (("reports", ("a/1.xml", "a/2.xml")), ("same", ("a/1.xml", "b/1.xml"))):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=9) as tar:
            for number, member in enumerate(members):
                info = tarfile.TarInfo(member)
                content = report_xml(number)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        put(f"openi/{name}.tgz", out.getvalue())
    sample = ROOT / "data/cxr_qba/sample/release"
    zipped(
        "archives/studies.zip",
        {p.relative_to(sample).as_posix(): p.read_bytes() for p in sample.rglob("*990002*.json")},
    )
    scenes = sorted((ROOT / "data/gemex/sample/scene_graph").glob("*.json"))
    zipped("archives/scene_graph.zip", {f"scene_graph/{p.name}": p.read_bytes() for p in scenes})


def zipped(name: str, members: dict[str, bytes]) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member), content, zipfile.ZIP_DEFLATED)
    put(name, out.getvalue())


def weights() -> None:
    import tempfile

    from flax import nnx
    from safetensors.numpy import save

    from bench.fuzz.targets import _small_sizes
    from cxrjax.models import VLM, LoRAConfig, apply_lora
    from cxrjax.models.hf_import import abstract_vlm
    from cxrjax.models.hf_layout import published_prefixes, tensor_rules, with_prefix
    from cxrjax.models.partition import parameter_shapes
    from cxrjax.models.peft import save_peft

    sizes = _small_sizes()
    shapes, prefixes = parameter_shapes(abstract_vlm(sizes)), published_prefixes(sizes)
    tensors = {}
    for rule in tensor_rules(sizes):
        for name in rule.names(sizes):
            shape = rule.their_shape(shapes[rule.path], 4)
            tensors[with_prefix(name, prefixes)] = np.zeros(shape, np.float16)
    weight_map = {}
    for number in range(2):
        shard = {name: tensors[name] for name in list(tensors)[number::2]}
        file = f"model-{number + 1:05d}-of-00002.safetensors"
        put(f"hf_folder/{file}", save(shard))
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": weight_map}
    put("hf_folder/model.safetensors.index.json", index)
    model = VLM(sizes, rngs=nnx.Rngs(0))
    apply_lora(model, LoRAConfig(rank=2, alpha=4.0, targets=("projector",)), nnx.Rngs(1))
    with tempfile.TemporaryDirectory() as folder:
        save_peft(folder, model, "google/x", base_sha256="abc")
        for file in Path(folder).iterdir():
            put(f"adapter/{file.name}", file.read_bytes())
    for kind in drawn_configs.KINDS:
        put(f"hf_config/{kind}.json", drawn_configs.draw_config(kind, 0))


def gguf() -> None:
    import tempfile

    from gguf import GGMLQuantizationType, GGUFWriter, quants

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = GGUFWriter(path, "gemma3")
        for key, value in {
            "context_length": 64,
            "embedding_length": 32,
            "block_count": 1,
            "feed_forward_length": 32,
            "attention.head_count": 1,
            "attention.head_count_kv": 1,
            "attention.key_length": 32,
            "attention.sliding_window": 16,
        }.items():
            writer.add_uint32(f"gemma3.{key}", value)
        writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
        writer.add_float32("gemma3.rope.freq_base", 1e6)
        writer.add_tokenizer_model("llama")
        tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "b"]
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([3, 3, 3, 2, 1, 1])
        writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
        table = quants.quantize(np.zeros((6, 32), np.float32), GGMLQuantizationType.Q8_0)
        writer.add_tensor("token_embd.weight", table, raw_dtype=GGMLQuantizationType.Q8_0)
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        put("gguf/small.gguf", path.read_bytes())
    # A list in a list: how deep, nobody counts.
    nested = struct.pack("<IQ", 9, 1) * 400
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    put("gguf/nested.gguf", head + struct.pack("<I", 9) + nested + struct.pack("<IQB", 0, 1, 1))


def servers() -> None:
    message = {"role": "assistant", "content": '{"city": "Hue", "people": 400, "near": []}'}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    answer["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    put("language_model/answer.json", answer | {"usage": usage})
    message = message | {"content": '```json\n{"city": "Hue"}\n```', "refusal": None}
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    answer["choices"] = [{"index": 0, "message": message, "logprobs": logprobs}]
    put("language_model/fenced.json", answer)
    wrong = {"error": {"message": "slow down", "type": "x", "code": "rate_limit"}}
    for name, status, body in (("error", "429 Too Many", wrong), ("plain", "200 OK", answer)):
        text = json.dumps(body)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        head += f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        put(f"language_model/{name}.http", head + text)
    host = "Host: 127.0.0.1:PORT\r\nConnection: close\r\nOrigin: http://127.0.0.1:PORT\r\n"
    put("review_server/page.http", f"GET /TOKEN/ HTTP/1.1\r\n{host}\r\n")
    put("review_server/ratings.http", f"GET /TOKEN/ratings HTTP/1.1\r\n{host}\r\n")
    put("review_server/picture.http", f"GET /TOKEN/picture/0 HTTP/1.1\r\n{host}\r\n")

    def rating(field: str, value: str) -> str:
        body = json.dumps({"question_id": "q0", "field": field, "value": value})
        kind = "Content-Type: application/json\r\n"
        length = f"Content-Length: {len(body)}\r\n"
        return f"POST /TOKEN/ratings HTTP/1.1\r\n{host}{kind}{length}\r\n{body}"

    boxes = [
        {"box": [10, 20, 300, 400], "label": "Nodule", "origin": 0},
        {"box": [500, 20, 600, 90.5], "label": "Mass", "kind": "missed"},
    ]
    told = {"boxes": boxes, "answer": "The nodule is at [box 1]."}
    put("review_server/correct.http", rating("correction", json.dumps(told)))
    post = rating("comment", "good")
    put("review_server/rate.http", post)
    put("review_server/twice.http", post + post)
    put(
        "review_server/hand_in.http",
        f"POST /TOKEN/hand_in HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n",
    )


def scores() -> None:
    """Writes some records of each benchmark's sample, and answers to them."""
    import tempfile

    from cxrjax.paper import find_paper
    from cxrjax.records import format_record, read_records

    samples = {
        "vindr_cxr_vqa": "vindr_cxr_vqa/sample/data_v1.json",
        "gemex": "gemex/sample",
        "ms_cxr": "ms_cxr/sample",
        "vix_ray": "vix_ray/sample",
        "cxr_qba": "cxr_qba/sample/release",
    }
    for dataset, sample in samples.items():
        with tempfile.TemporaryDirectory() as folder:
            made = find_paper(dataset).part("builder")
            options = made.options_class(source=ROOT / "data" / sample, out=Path(folder))
            made(options).build()
            files = sorted(Path(folder, "records").glob("*.jsonl"))
            found = [one for file in files for one in read_records(file)]
        chosen = found[:: max(1, len(found) // 6)][:6]
        for one in chosen:
            one.split = chosen[0].split
            one.image_hw = one.image_hw or (3000, 3000)
        put(f"score/{dataset}/references.jsonl", "".join(format_record(r) + "\n" for r in chosen))
        answers = [
            {"question_id": one.question_id, "text": one.answer_text or "No.", "parse": "ok"}
            | {"boxes": [[0.1, 0.1, 0.5, 0.5]], "labels": [None], "answer_logprob": -1.0}
            for one in chosen
        ]
        put(f"score/{dataset}/predictions.jsonl", lines(answers))


if __name__ == "__main__":
    for make in (texts, images, archives, weights, gguf, servers, scores):
        make()
