"""The endpoints beside generation: health, version, metrics, models, tokens."""

from __future__ import annotations

import time

from gateway.engine.api.ask import render
from gateway.engine.api.chat import messages_of
from gateway.engine.api.fields import Fields, decode
from gateway.engine.api.messages import conversation_of
from gateway.engine.api.refusal import unknown_model
from gateway.engine.api.tools import tools_of
from gateway.engine.core import Engine
from gateway.engine.http import Reply, Request
from gateway.engine.tokenizer import TOKENIZER

_VERSION = "0.32.0"  # the vLLM whose shapes are followed
_PROMETHEUS = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_STARTED = int(time.time())


def health(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer that the engine is well."""
    del engine, request
    reply.whole(200, b"", [])


def version(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the version, and that this is no vLLM."""
    del request
    note = "Draftlane's embedded engine: it looks like vLLM and has no model. Its answers are made up, its drafting is real."
    reply.json(
        200,
        {"version": f"{_VERSION}+draftlane.embedded", "engine": "embedded", "kind": engine.settings.kind, "note": note},
    )


def metrics(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the counters, for Prometheus."""
    del request
    batch = engine.batch
    reply.whole(200, engine.metrics.render(batch.running, batch.waiting, batch.cached), _PROMETHEUS)


def models(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the one model served."""
    del request
    name, length = engine.settings.model, engine.settings.max_model_len
    card = {"id": name, "object": "model", "created": _STARTED, "owned_by": "vllm", "root": name, "parent": None}
    reply.json(200, {"object": "list", "data": [{**card, "max_model_len": length, "permission": []}]})


def _served(engine: Engine, request: Request) -> Fields:
    fields = Fields(decode(request.body))
    name = fields.text("model")
    if name is not None and name.partition("@")[0] != engine.settings.model:
        raise unknown_model(name)
    return fields


def tokenize(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the ids of a prompt or of a conversation."""
    fields = _served(engine, request)
    if "messages" in fields:
        ids = list(render(messages_of(fields), tools_of(fields)))
    else:
        text = fields.text("prompt")
        if text is None:
            raise fields.missing("prompt")
        ids = TOKENIZER.encode(text)
    shown = [TOKENIZER.raw(one).decode("utf-8", "replace") for one in ids] if fields.flag("return_token_strs") else None
    length = engine.settings.max_model_len
    reply.json(200, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": shown})


def detokenize(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the text of some ids."""
    fields = _served(engine, request)
    ids = fields.body.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(one, int) and 0 <= one < TOKENIZER.size for one in ids):
        raise fields.wrong("tokens", "expected a list of token ids")
    reply.json(200, {"prompt": TOKENIZER.decode(ids)})


def count_tokens(engine: Engine, request: Request, reply: Reply) -> None:
    """Answer with the number of input tokens of an Anthropic request."""
    conversation, tools = conversation_of(_served(engine, request))
    count = len(render(conversation, tools))
    reply.json(200, {"input_tokens": count, "context_management": {"original_input_tokens": count}})
