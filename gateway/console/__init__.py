"""The operator's page and what it shows: money, pools, decisions, and what is wrong in words."""

from gateway.console.lately import Lately
from gateway.console.overview import Sight, overview
from gateway.console.problems import Used
from gateway.console.routes import router

__all__ = ["Lately", "Sight", "Used", "overview", "router"]
