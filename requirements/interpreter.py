"""Print the Python to build .venv with: the one that runs this, or the system's where that one is the better built.

Version managers compile without profile-guided optimisation unless they are told to, distributions with it. For a call of the
gateway's that is 6 to 16 % of its CPU (docs/performance.md), and nobody would think of it. PYTHON= decides otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

SYSTEMS = "/usr/bin/python3"
# What .venv needs of it: the same release, so that the same wheels fit, a way to make it, and headers for the compiled parts.
_WANTED = f"""
import ensurepip, os, sys, sysconfig, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info[:2] != {sys.version_info[:2]} or not os.path.exists(headers))
"""


def choose(here: str, built_with: str, systems: str = SYSTEMS) -> str:
    """Return which of two interpreters to take; `built_with` is what `here` was configured with."""
    if "--enable-optimizations" in built_with or os.path.realpath(here) == os.path.realpath(systems):
        return here
    try:
        done = subprocess.run([systems, "-c", _WANTED], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return here
    return here if done.returncode else systems


if __name__ == "__main__":
    chosen = choose(sys.executable, sysconfig.get_config_var("CONFIG_ARGS") or "")
    if chosen != sys.executable:
        sys.stderr.write(f"taking {chosen}: {sys.executable} was built without optimisation (PYTHON= decides)\n")
    sys.stdout.write(f"{chosen}\n")
