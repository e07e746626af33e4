"""Site profiles: what differs between clusters and not between plans (network variables, containers, limits)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from ruamel.yaml import YAML

from rpegc.errors import InputError, SourcePosition, guess


@dataclass(frozen=True, slots=True)
class ContainerHook:
    """An option of `srun` that enters a container or software environment when a variable of the user is set."""

    variable: str
    option: str


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster's profile. Times in seconds.

    `variables` are exported before Ray starts, in this order, where they are not set already. `expected_network` is
    what NCCL_NET must then be ("" = anything).

    `unset` lists variables that must not be inherited. `node_folder` is a folder local to each node and visible to
    every job step there: Ray's sockets live in it. `headers` are further `#SBATCH` options.
    """

    name: str
    description: str
    source: str
    partition: str
    headers: tuple[str, ...]
    cpus_per_node: int
    maximum_time_s: int
    node_folder: str
    variables: tuple[tuple[str, str], ...]
    unset: tuple[str, ...]
    containers: tuple[ContainerHook, ...]
    expected_network: str


def site_names() -> tuple[str, ...]:
    """Return the names of all site profiles, sorted."""
    folder = resources.files("backends") / "sites"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_site(name: str, position: SourcePosition | None = None) -> Site:
    """Read a site profile; InputError, at the given place, for a name that has none."""
    if name not in site_names():
        raise InputError(f"cluster.site: there is no site profile {name!r}", position, guess(name, site_names()))
    text = (resources.files("backends") / "sites" / f"{name}.yaml").read_text(encoding="utf-8")
    data = YAML(typ="safe", pure=True).load(text)
    return Site(
        name=name,
        description=data["description"],
        source=data["source"],
        partition=data["partition"] or "",
        headers=tuple(data["headers"]),
        cpus_per_node=data["cpus_per_node"] or 0,
        maximum_time_s=int(data["maximum_time_s"]),
        node_folder=data["node_folder"],
        variables=tuple((key, str(value)) for key, value in data["variables"].items()),
        unset=tuple(data["unset"]),
        containers=tuple(ContainerHook(hook["variable"], hook["option"]) for hook in data["containers"]),
        expected_network=data["expected_network"] or "",
    )
