"""Counters for Prometheus, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

OWN = "deltaenergy"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """What is counted of a service."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(f"{OWN}_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.seconds = Histogram(f"{OWN}_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=own)
        self.batch_sizes = Histogram(
            f"{OWN}_batch_images", "Images that shared a run of the tower.", buckets=SIZES, registry=own
        )
        self.under_way = Gauge(f"{OWN}_images_under_way", "Images decoded, waiting or being looked at.", registry=own)
        self.unreadable = Counter(f"{OWN}_unreadable_images", "Images that could not be read.", registry=own)
        self.verdicts = Counter(f"{OWN}_verdicts", "Verdicts by detector.", ["detector", "verdict"], registry=own)
        self.monitored = Gauge(
            f"{OWN}_monitor_images", "Images that the monitor has looked at.", ["detector"], registry=own
        )
        self.monitor_rate = Gauge(
            f"{OWN}_monitor_rate", "Share of them called none of these.", ["detector"], registry=own
        )
        self.monitor_bound = Gauge(
            f"{OWN}_monitor_rate_bound", "Share that the calibration allows for.", ["detector"], registry=own
        )
        self.monitor_evidence = Gauge(
            f"{OWN}_monitor_evidence", "Evidence of a change, log10, by test.", ["detector", "test"], registry=own
        )
        self.monitor_bar = Gauge(
            f"{OWN}_monitor_evidence_bar", "Evidence that raises the alarm, log10.", ["detector"], registry=own
        )
        self.monitor_changed = Gauge(
            f"{OWN}_monitor_changed", "1 once the images have changed, else 0.", ["detector"], registry=own
        )

    def text(self) -> bytes:
        """All of it, in Prometheus's format."""
        return bytes(generate_latest(self.registry))
