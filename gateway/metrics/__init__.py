"""What Prometheus reads: `Metrics`, a sink of finished calls and of the state of pools."""

from gateway.metrics.share import Share
from gateway.metrics.sink import Metrics

__all__ = ["Metrics", "Share"]
