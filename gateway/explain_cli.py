"""`draftlane explain`: where a request would go and why, from a configuration file alone or from a running gateway."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

from classifier.scorer import ArtefactError
from gateway import options
from gateway.app import Gateway
from gateway.config import Config, ConfigError, load
from gateway.errors import GatewayError
from gateway.explain import explain

_NOWHERE = "http://127.0.0.1:9"  # stands for an embedded engine that is not running; a dry run calls none


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("explain", help="tell where a request would go and why, without calling an engine")
    parser.add_argument("prompt", nargs="?", help="a user message; or give --body")
    parser.add_argument("--body", help="a file with a whole request body, - for standard input")
    parser.add_argument("--model", help="the model for PROMPT (default: the first of the configuration)")
    parser.add_argument("--temperature", type=float, help="the temperature for PROMPT (default: the engine's own)")
    parser.add_argument("--tenant", help="whose policy applies (default: the first tenant's)")
    options.add_config(parser)
    parser.add_argument(
        "--url",
        help="ask the gateway running there, with what it has learned; the admin key is in $DRAFTLANE_ADMIN_KEY",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the explanation; 1 when the request would be refused, 2 for wrong use."""
    if (args.prompt is None) == (args.body is None):
        print("draftlane explain: give either a PROMPT or --body FILE", file=sys.stderr)
        return 2
    try:
        config = load(args.config) if args.url is None or (args.body is None and args.model is None) else None
        body = _body(args, config)
        found = _ask(args, body) if args.url else explain(_idle_gateway(config), body, tenant=args.tenant)  # type: ignore[arg-type]
    except ConfigError as error:
        print("\n".join(f"{args.config}: {problem}" for problem in error.problems), file=sys.stderr)
        return 1
    except (GatewayError, ArtefactError, OSError, httpx.HTTPError) as error:
        print(f"draftlane explain: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found) if args.json else _in_words(found))
    return 1 if "error" in found else 0


def _body(args: argparse.Namespace, config: Config | None) -> bytes:
    if args.body is not None:
        return sys.stdin.buffer.read() if args.body == "-" else Path(args.body).read_bytes()
    model = args.model or (config.models[0].name if config else "")
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": args.prompt}]}
    if args.temperature is not None:
        request["temperature"] = args.temperature
    return json.dumps(request).encode()


def _idle_gateway(config: Config) -> Any:
    urls = {pool.name: (_NOWHERE,) * pool.embedded.replicas for pool in config.pools if pool.embedded}
    return Gateway(config, embedded=urls).pipeline


def _ask(args: argparse.Namespace, body: bytes) -> dict[str, Any]:
    key = os.environ.get("DRAFTLANE_ADMIN_KEY", "")
    answer = httpx.post(
        args.url.rstrip("/") + "/draftlane/explain",
        content=body,
        params={"tenant": args.tenant} if args.tenant else None,
        headers={"authorization": f"Bearer {key}"} if key else None,
    )
    try:
        found: dict[str, Any] = answer.json()
        refusal = "" if answer.status_code == 200 else found["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise OSError(f"{args.url} does not answer as a gateway does (status {answer.status_code})") from None
    if refusal:
        raise OSError(refusal)
    return found


def _in_words(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"refused     {found['error']['status']}: {found['error']['message']}"
    score = found["score"]
    predicted = f"predicts {score['acceptance_length']:.2f} tokens per step (± {score['spread']:.2f} in log)"
    lines = [
        f"score       {score['value']:.3f}   {predicted}",
        f"pool        {found['pool']}   because: {found['reason']}; {found['detail']}",
        f"curve       {found['expected_acceptance_length']:.2f} tokens per step; break-even {found['break_even']:.2f}",
        f"threshold   {found['threshold']:.3f}",
    ]
    for option in found["options"]:
        note = option["unfit"] or f"{option['time_seconds']:.2f} s, ${option['cost_usd']:.6f}"
        lines.append(f"option      {option['pool']}: {note}")
    lines += [f"feature     {part['effect']:+.3f}  {part['name']}" for part in found["features"]]
    return "\n".join(lines)
