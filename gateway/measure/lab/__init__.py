"""The lab: a real vLLM on the CPU, with real speculative decoding, for tests, sweeps and the study. Linux only.

`make lab` builds its environment, `.lab`, which has nothing to do with the one that serves: torch is heavy and vLLM pins
narrowly. `engines` starts engines for a while, `session` the whole lab until `make lab-stop`; `model` and the `distil*`
modules run inside `.lab`.
"""
