"""The operator's page and what it shows: money, pools, decisions, and what is wrong in words."""

from gateway.console.colleagues import Colleagues, Told, decision
from gateway.console.lately import Lately
from gateway.console.overview import DECISIONS, Sight, overview
from gateway.console.problems import Used
from gateway.console.routes import router

__all__ = ["DECISIONS", "Colleagues", "Lately", "Sight", "Told", "Used", "decision", "overview", "router"]
