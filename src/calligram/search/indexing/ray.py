"""Encode the shards of a source on a Ray cluster whose machines share a file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calligram.data.pictures import share_cores
from calligram.errors import UserError
from calligram.extras import require
from calligram.lazy import ALLOWED_CODE, import_code
from calligram.progress import Track, silent
from calligram.search.indexing.encode import NetworkPrecision
from calligram.search.indexing.shards import Shard, stage_source
from calligram.search.indexing.sources import check_readable, open_source
from calligram.search.library.matchers import NO_RERANKER, LibraryMatchers

MAX_SHARDS = 1024


def ray_module() -> Any:
    """Ray.

    Raises:
        UserError: when it is not installed.
    """
    return require("ray", extra="ray", purpose="--ray")


def stage_over_ray(
    address: str,
    models: LibraryMatchers,
    source: Path,
    out: Path,
    *,
    rebuild: bool = False,
    device: str = "auto",
    precision: NetworkPrecision | None = None,
    track: Track = silent,
) -> int:
    """Encode a source with one shard for each GPU, or for each CPU core, of the cluster.

    Returns the number of pictures. Pictures in the staging folder are not encoded again, so a stopped run continues.
    ``index_source`` then adds the rows of the staging folder to the library.

    Args:
        address: ``ray://host:10001``, ``host:6379``, ``auto`` for the cluster this machine belongs to, or ``local``.
        models: the matchers; each worker loads them from their folders.
        source: a folder that all machines have at this path.
        out: folder of the library, which all machines have as well.
        rebuild: encode the whole source, not only what the library lacks.
        device: where each worker encodes.
        precision: of the networks.
        track: shows progress.
    """
    check_readable(models, open_source(source))
    ray = ray_module()
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at '{address}' ({str(error).splitlines()[0]})") from error
    try:
        gpus = device != "cpu" and ray.cluster_resources().get("GPU", 0)
        places = int(gpus or ray.cluster_resources().get("CPU", 1))
        count = max(1, min(places, MAX_SHARDS))
        task = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=3)(_stage_shard)
        named = [s.source if s is not None else None for s in (models.matcher, models.reranker)]
        places_of = str(source.resolve()), str(out.resolve())
        machines = sum(bool(node["Alive"]) for node in ray.nodes())
        how = "cuda" if gpus else "cpu", precision, rebuild, -(-count // max(1, machines))
        running = [task.remote(named, *places_of, (n, count), *how, tuple(ALLOWED_CODE)) for n in range(1, count + 1)]
        return sum(track(_finished(ray, running), "shards", count))
    finally:
        ray.shutdown()


def _finished(ray: Any, running: list[Any]) -> Any:
    while running:
        done, running = ray.wait(running, num_returns=1)
        yield from ray.get(done)


def _stage_shard(
    named: list[str | None],
    source: str,
    out: str,
    shard: tuple[int, int],
    device: str,
    precision: NetworkPrecision | None,
    rebuild: bool,
    processes: int,
    code: tuple[str, ...],
) -> int:
    """The task of a worker, one of several on its machine: the same as ``calligram index --shard``."""
    import torch

    for name in code:  # what the user gave with --import
        import_code(name)
    torch.set_num_threads(1)
    share_cores(processes)
    matcher, reranker = named
    assert matcher is not None
    models = LibraryMatchers.load(matcher, None if reranker == matcher else reranker or NO_RERANKER)
    how: Any = {"rebuild": rebuild, "device": device, "precision": precision}
    return stage_source(models, Path(source), Path(out), Shard(*shard), **how)
