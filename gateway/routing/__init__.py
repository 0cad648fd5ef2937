"""Where a call goes: hard constraints, a learned curve, the economics of the moment, one plan. Pure; time, chance and state are arguments."""

from gateway.routing.constraints import FEATURES, Needs, unfit
from gateway.routing.curve import Point
from gateway.routing.curves import Curves, Estimate
from gateway.routing.economics import Option
from gateway.routing.plan import REASONS, Plan, plan
from gateway.routing.view import Affinity, Ask, PoolView, Settings

__all__ = [
    "FEATURES",
    "REASONS",
    "Affinity",
    "Ask",
    "Curves",
    "Estimate",
    "Needs",
    "Option",
    "Plan",
    "Point",
    "PoolView",
    "Settings",
    "plan",
    "unfit",
]
