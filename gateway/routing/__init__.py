"""Where a call goes: hard constraints, a learned curve, the economics of the moment, one plan.

Pure: time, chance and state are arguments. `plan` decides, `Curves` learns, `Thresholds` publishes, `Guards` watch.
"""

from gateway.routing.constraints import FEATURES, Needs, unfit
from gateway.routing.curve import Point
from gateway.routing.curves import Curves, Estimate
from gateway.routing.economics import Option
from gateway.routing.explain import explain
from gateway.routing.guards import GUARDS, Guards, Verdict, Window
from gateway.routing.plan import REASONS, Plan, plain, plan
from gateway.routing.thresholds import Published, Thresholds
from gateway.routing.view import Affinity, Ask, PoolView, Settings

__all__ = [
    "FEATURES",
    "GUARDS",
    "REASONS",
    "Affinity",
    "Ask",
    "Curves",
    "Estimate",
    "Guards",
    "Needs",
    "Option",
    "Plan",
    "Point",
    "PoolView",
    "Published",
    "Settings",
    "Thresholds",
    "Verdict",
    "Window",
    "explain",
    "plain",
    "plan",
    "unfit",
]
