"""What Prometheus reads: `Metrics`, a sink of finished calls and of the state of pools."""

from gateway.metrics.engines import Reading
from gateway.metrics.page import Metrics
from gateway.metrics.share import Share

__all__ = ["Metrics", "Reading", "Share"]
