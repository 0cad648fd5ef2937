"""The embedded engine: a vLLM look-alike that really drafts and verifies, for machines without an accelerator."""

from gateway.engine.running import Running, serve
from gateway.engine.settings import EngineSettings

__all__ = ["EngineSettings", "Running", "serve"]
