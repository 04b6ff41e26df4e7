"""Prometheus metrics of a server."""

from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cxrjax.apps.serving.engine import Engine

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServerMetrics:
    """Counters, and a page of them."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self.first_token = prometheus_client.Histogram(
            "cxrjax_first_token_seconds",
            "From a question to the first token of its answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.requests = prometheus_client.Counter(
            "cxrjax_requests", "Requests answered", ("route", "status"), registry=self.registry
        )
        self.request_seconds = prometheus_client.Histogram(
            "cxrjax_request_seconds",
            "From a request's headers to the end of its answer",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def watch(self, engine: Engine) -> None:
        """Adds the metrics of an engine."""
        self.registry.register(_EngineMetrics(engine))

    def page(self) -> bytes:
        """All of them as Prometheus reads them."""
        return prometheus_client.generate_latest(self.registry)


class _EngineMetrics(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        engine, counts = self._engine, self._engine.counts
        for name, about, value in (
            ("queue", "Questions that wait for a slot", engine.waiting),
            ("batch", "Questions that are being answered", engine.writing),
            ("ready", "1 where questions are answered", int(engine.is_ready)),
            ("image_cache_bytes", "Of what is kept of images", engine.images.bytes),
        ):
            yield GaugeMetricFamily(f"cxrjax_{name}", about, value)
        counted: tuple[tuple[str, str, float], ...] = (
            ("tokens", "Tokens written", counts.tokens),
            ("steps", "Steps of all slots", counts.steps),
            ("queue_seconds", "Seconds that questions have waited", counts.waited),
            ("image_cache_hits", "Images that were read before", engine.images.hits),
            ("image_cache_misses", "Images that were read", engine.images.misses),
            (
                "compiled_after_warm_up",
                "Programs compiled after warm-up; anything above 0 is a fault",
                counts.compiled_after_warm_up,
            ),
        )
        for name, about, number in counted:
            yield CounterMetricFamily(f"cxrjax_{name}", about, number)
        ended = CounterMetricFamily(
            "cxrjax_questions", "Questions by how they ended", labels=["ending"]
        )
        for ending, count in sorted(counts.questions.items()):
            ended.add_metric([ending], count)
        yield ended
