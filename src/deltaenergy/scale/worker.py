"""One worker process: `python -m deltaenergy.scale.worker`, started by `processes.py`.

It reads lines of JSON from standard input, first its settings, then positions of planned shards, and answers on
standard output: {"progress": n}, {"filled": …}, {"busy": true}, {"gone": true} or {"error": …}. When its input ends,
because the process that started it has ended, however that ended, it ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from deltaenergy.errors import DeltaEnergyError
from deltaenergy.store.filling import PlanGone


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that started us is interrupted, too, and decides
    # Whatever else prints, the answers stay apart from it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    try:
        settings = json.loads(lines.get())
        from deltaenergy.scale.shard_worker import ShardWorker

        worker = ShardWorker(settings)
        say({"ready": True})
        while True:
            position = json.loads(lines.get())
            filled = worker.fill(position, lambda done, _: say({"progress": done}))
            say({"busy": True} if filled is None else {"filled": filled})
    except PlanGone:
        say({"gone": True})
    except DeltaEnergyError as error:
        say({"error": str(error), "kind": type(error).__name__})


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
