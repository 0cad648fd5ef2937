"""`vllm serve` command lines as a real vLLM reads them, where the lab has one; the tables of flags are the doctor's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Final

from deploy.check.documents import ROOT
from gateway.measure.doctor.command import Command, read
from gateway.measure.doctor.releases import IMAGES, NATIVE, PLUGIN, STOCK, V0, Release

__all__ = ["IMAGES", "NATIVE", "PLUGIN", "STOCK", "V0", "Command", "Release", "ask_vllm", "lab_is_there", "read"]

_LAB: Final = ROOT / ".lab" / "bin" / "python"
_ASK_VLLM: Final = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", *json.loads(sys.argv[1])])
AsyncEngineArgs.from_cli_args(args)
"""


def lab_is_there() -> bool:
    """Whether `make lab` has installed a real vLLM."""
    return (ROOT / ".lab" / ".ready").is_file()


def ask_vllm(args: Sequence[str]) -> str | None:
    """Give a stock command line to the lab vLLM's own parser; return what it says when it refuses it."""
    done = subprocess.run([_LAB, "-c", _ASK_VLLM, json.dumps(list(args))], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["refused"])[-1]
