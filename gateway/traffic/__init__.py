"""Observations of own traffic, kept where the operator wants them, to train the classifier.

`Keeper` takes them in; `draftlane observations export` gives them out as `python -m classifier train --traffic` reads them.
"""

from gateway.traffic.keeper import DROPPED, Keeper, Observer

__all__ = ["DROPPED", "Keeper", "Observer"]
