"""`python -m gateway.measure.lab up | down | status`: what `make lab` and `make lab-stop` call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gateway.measure.lab import front, session
from gateway.measure.lab.errors import LabError
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.lab.processes import end_as_interrupted

_SAID = """
The lab is up: {model} behind the gateway, on this machine only.
  gateway      {gateway}/v1        key {key}, admin key {admin}, console {gateway}/draftlane/console
  baseline     {baseline}/v1
  speculative  {speculative}/v1        prompt lookup, window 5

Try it; the response headers x-draftlane-pool and x-draftlane-reason say who answered and why:
  curl -si {gateway}/v1/chat/completions -H 'authorization: Bearer {key}' -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Count from 1 to 40."}}], "temperature": 0}}'

  from openai import OpenAI
  client = OpenAI(base_url="{gateway}/v1", api_key="{key}")
  print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello!"}}]))

Stop it all:  make lab-stop
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what it says, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m gateway.measure.lab", description="The lab with a real vLLM.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start two engines and the gateway, and leave them running")
    up.add_argument(
        "--port",
        type=int,
        default=session.PORT,
        help="of the gateway; the engines take the two after it; 0: free ones (default: %(default)s)",
    )
    commands.add_parser("down", help="stop them")
    commands.add_parser("status", help="say what runs; 1 when the lab is not up")
    args = parser.parse_args(argv)
    if args.command == "up" and not 0 <= args.port <= 65533:
        parser.error("--port: must be 0 or a port whose two successors are ports too")
    try:
        return {"up": _up, "down": _down, "status": _status}[args.command](args)
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; what was started has been stopped", file=sys.stderr)
        return 1


def _up(args: argparse.Namespace) -> int:
    found = session.up(Place.usual(), port=args.port, say=_say)
    print(_SAID.format(model=SERVED, key=front.KEY, admin=front.ADMIN_KEY, **found.urls))
    return 0


def _down(_: argparse.Namespace) -> int:
    ended = session.down(Place.usual())
    _say(f"stopped: {', '.join(ended)}" if ended else "nothing was running")
    return 0


def _status(_: argparse.Namespace) -> int:
    found = session.current(Place.usual())
    for record in found.processes if found else ():
        _say(
            f"{record.name}: {'runs' if record.alive else 'has ended'} ({record.url}, pid {record.pid}, log {record.log})"
        )
    if found is None:
        _say("not up; `make lab` starts it")
    return 0 if found is not None and found.alive else 1


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_as_interrupted()
    sys.exit(main())
