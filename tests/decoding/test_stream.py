"""Answers piece by piece; tests/test_api.py compares them with whole ones."""

from types import SimpleNamespace

from cxrjax.decoding import stream


def test_a_character_of_several_tokens_waits_for_its_last(monkeypatch):
    written = "phổi".encode()
    loaded = SimpleNamespace(problems=[], batch=None)
    monkeypatch.setattr(stream, "eval_loader", lambda *_, **__: [loaded])
    monkeypatch.setattr(stream, "batch_inputs", lambda *_: ())
    monkeypatch.setattr(stream, "_tokens", lambda *_: iter(range(len(written))))
    text_of = SimpleNamespace(decode=lambda ids: written[: len(ids)].decode(errors="replace"))
    generator = SimpleNamespace(strategy=SimpleNamespace(candidates=1))
    assert [*stream.stream_answer(generator, None, text_of, None)] == ["p", "h", "ổ", "i"]
