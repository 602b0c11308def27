"""Counters for Prometheus, in their own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

OWN = "deltaenergy"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of a service."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{OWN}_{name}", text, labels, registry=own)

        self.requests = Counter(f"{OWN}_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.seconds = Histogram(f"{OWN}_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=own)
        self.batch_sizes = Histogram(f"{OWN}_batch_images", "Images per batch.", buckets=SIZES, registry=own)
        self.under_way = gauge("images_under_way", "Images being decoded, waiting or in a batch.")
        self.unreadable = Counter(f"{OWN}_unreadable_images", "Unreadable images.", registry=own)
        self.verdicts = Counter(f"{OWN}_verdicts", "Verdicts by detector.", ["detector", "verdict"], registry=own)
        self.monitored = gauge("monitor_images", "Images seen by the monitor.", "detector")
        self.monitor_rate = gauge("monitor_rate", "Share of these images that were rejected.", "detector")
        self.monitor_bound = gauge(
            "monitor_rate_bound", "Share of rejected images that the calibration allows.", "detector"
        )
        self.monitor_evidence = gauge("monitor_evidence", "Evidence of a change, log10, by test.", "detector", "test")
        self.monitor_bar = gauge("monitor_evidence_bar", "Evidence that raises the alarm, log10.", "detector")
        self.monitor_changed = gauge("monitor_changed", "1 once the images have changed, else 0.", "detector")

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
