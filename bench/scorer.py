"""Time what scoring a request costs: CPU time per call, memory, and what is imported; one JSON line per figure.

CPU time is the process's own, call by call; the median counts, beside the least and the 95th percentile. Nothing is cached
between calls but what the scorer itself keeps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from classifier.scorer import Scorer, View

CALLS: Final = 3_000
BUDGETS: Final = {"chat of 1.5 KB": 150.0, "chat of 500 KB": 1_000.0}  # microseconds
RESIDENT: Final = 30.0  # MiB that serving may add to an interpreter that has numpy

# A question with code in it, as long as many are.
_QUESTION: Final = """\
I have a small service that reads orders from a queue and writes them to a table. Since last week it is slow.

```python
import json
import queue

def consume(source, table, limit=100):
    batch = []
    while True:
        try:
            item = source.get(timeout=1.0)
        except queue.Empty:
            break
        order = json.loads(item)
        if order["state"] != "open" or order["total"] <= 0:
            continue
        batch.append((order["id"], order["customer"], order["total"]))
        if len(batch) >= limit:
            table.insert(batch)
            batch.clear()
    if batch:
        table.insert(batch)
```

What I have tried so far:
1. A larger limit, which made no difference.
2. Two consumers, which made it worse: they wait for the same lock.
3. Leaving out the check of the state, which changed nothing.

The table has about four million rows and an index on customer. Inserting a hundred rows by hand takes 20 ms, so I do not think
that the database is to blame. Could you please rewrite the function so that it is faster, keep its signature, and explain in a
is an ordinary one from the standard library, and the orders arrive in bursts of a few thousand, several times an hour.
"""
_RESIDENT: Final = """
import sys
import numpy, json, hashlib, base64
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024  # pages of 4 KiB
before = resident()
from classifier.scorer import Scorer, View
scorer = Scorer.load()
for i in range(200):
    scorer.score(View.of({"messages": [{"role": "user", "content": "word %d " % i * 300}]}))
print(resident() - before, "sklearn" in sys.modules or "scipy" in sys.modules)
"""


def bodies() -> dict[str, dict[str, Any]]:
    """A chat of one question, and a long one."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": _QUESTION * 28} for i in range(11)]
    return {
        "chat of 1.5 KB": {"messages": [{"role": "user", "content": _QUESTION}], "temperature": 0},
        "chat of 500 KB": {"messages": turns, "temperature": 0, "max_tokens": 512},
    }


def timed(call: Callable[[], object], calls: int = CALLS) -> dict[str, float]:
    """CPU microseconds of a call: median, least, 95th percentile."""
    spent = []
    for _ in range(calls):
        start = time.process_time_ns()
        call()
        spent.append((time.process_time_ns() - start) / 1e3)
    spent.sort()
    return {"median": spent[calls // 2], "least": spent[0], "p95": spent[int(0.95 * calls)]}


def main() -> int:
    """Print the figures; exit code 1 when one is over its budget."""
    scorer, over = Scorer.load(), False
    for name, body in bodies().items():
        figures = timed(lambda body=body: scorer.score(View.of(body)))  # type: ignore[misc]
        over |= figures["median"] > BUDGETS[name]
        print(json.dumps({"step": f"score a {name}", "unit": "us CPU", "budget": BUDGETS[name]} | figures))
    view = View.of(bodies()["chat of 1.5 KB"])
    print(json.dumps({"step": "explain it", "unit": "us CPU"} | timed(lambda: scorer.explain(view), 300)))
    done = subprocess.run([sys.executable, "-c", _RESIDENT], capture_output=True, text=True, check=True).stdout.split()
    over |= float(done[0]) > RESIDENT or done[1] != "False"
    print(json.dumps({"step": "memory added", "unit": "MiB", "budget": RESIDENT, "figure": float(done[0])}))
    print(json.dumps({"step": "scikit-learn or scipy imported", "figure": done[1] == "True"}))
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
