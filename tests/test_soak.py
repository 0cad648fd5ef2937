"""The three kinds of load, small: nothing is lost, altered or leaked, and idle connections stay open."""

from __future__ import annotations

from bench.soak import idle, requests, streams


def test_streams_side_by_side_are_whole_and_in_order() -> None:
    """Every byte of forty streams at once is what the engine itself sends, three times over."""
    found = streams.run(40, 50.0, 0.4)

    assert (found["requests"], found["failed"], found["altered"], found["failure"]) == (120, 0, 0, "")
    assert found["engines_left_out"] == 0


def test_requests_and_departures_leave_nothing_behind() -> None:
    """After requests, streams and clients that leave in their middle nothing is in hand and no file is left open."""
    found = requests.run(1000, size=500)

    assert (found["requests"], found["failed"], found["failure"]) == (1000, 0, "")
    assert {name: value for name, value in found.items() if name.startswith("leaked_")} == {
        "leaked_calls": 0,
        "leaked_leases": 0,
        "leaked_tasks": 0,
    }
    assert found["files_grown_by"] <= 120  # idle connections to the engine


def test_idle_connections_stay_open_beside_calls() -> None:
    """Three hundred clients that say nothing are kept, and calls beside them are answered."""
    found = idle.run(300)

    assert (found["connections"], found["still_open"], found["failure"]) == (300, 300, "")
