"""A simulated run as a Chrome trace: open it in Perfetto or chrome://tracing. One row a mesh, one for the host.

Format: Trace Event Format (Google, 2016): complete events ("X") with times in microseconds, metadata events ("M").
"""

from __future__ import annotations

import json
from typing import Any

from rpegc.plan import Plan
from rpegc.simulate import HOST, Trace

SHOWN_STEPS = 4
"""Steps after the warm-up that are shown: enough to see an asynchronous plan repeat."""


def chrome_trace(plan: Plan, trace: Trace) -> str:
    """Return the first steps after the warm-up as JSON; time 0 is where the first of them starts."""
    shown = [span for span in trace.spans if 0 <= span.step - trace.warm_up < SHOWN_STEPS]
    origin = min((span.start_s for span in shown), default=0.0)
    rows = {mesh.name: f"{mesh.name} {mesh.mesh_class}" for mesh in plan.meshes} | {HOST: "host"}
    threads = {name: number for number, name in enumerate(rows)}
    stages = {stage.name: stage for stage in plan.stages}
    events = [_metadata("process_name", 0, name=plan.name)]
    for name, label in rows.items():
        events.append(_metadata("thread_name", threads[name], name=label))
        events.append(_metadata("thread_sort_index", threads[name], sort_index=threads[name]))
    for span in shown:
        start, end = (round((seconds - origin) * 1e6) for seconds in (span.start_s, span.end_s))
        stage = stages[span.stage]
        events.append(
            {
                "name": span.stage,
                "cat": stage.op,
                "ph": "X",
                "pid": 0,
                "tid": threads[span.mesh],
                "ts": start,
                "dur": end - start,
                "args": {"step": span.step, "model": stage.model},
            }
        )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, indent=1, allow_nan=False) + "\n"


def _metadata(kind: str, thread: int, **arguments: str | int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": arguments}
