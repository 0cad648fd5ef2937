"""What failing engines do to a gateway's callers, and what the gateway does to failing engines: sixteen faults, two modes."""
