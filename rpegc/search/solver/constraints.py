"""The constraints of the integer program, in reading order: meshes, time, memory, syncs."""

from __future__ import annotations

from rpegc.search.solver.memory_constraints import (
    device_memory,
    host_memory,
)
from rpegc.search.solver.mesh_constraints import (
    meshes_are_used,
    meshes_fit,
    no_mesh_twice,
    one_option_a_stage,
    one_shape_a_mesh,
    options_follow_shapes,
    siblings_in_order,
    ties_agree,
)
from rpegc.search.solver.sync_constraints import (
    syncs_take_their_time,
)
from rpegc.search.solver.time_constraints import (
    device_work,
    durations_of_options,
    edges_in_time,
    exclusion_with_winding,
    load_of_every_leaf,
    meshes_overlap,
    no_stage_twice_at_once,
)

CONSTRAINTS = (
    one_option_a_stage,
    options_follow_shapes,
    one_shape_a_mesh,
    meshes_fit,
    no_mesh_twice,
    meshes_are_used,
    siblings_in_order,
    ties_agree,
    durations_of_options,
    edges_in_time,
    meshes_overlap,
    exclusion_with_winding,
    no_stage_twice_at_once,
    load_of_every_leaf,
    device_work,
    device_memory,
    host_memory,
    syncs_take_their_time,
)
