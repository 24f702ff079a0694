"""The engines: each takes tasks to where they run, and yields the results as they come.

A task may run twice, and in any order: results are named by what they depend on.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

RETRIES = 3
"""How often an engine starts a task again that has failed, perhaps on another machine."""


def local(run: Callable[[T], R], tasks: Iterable[T], address: str | None) -> Iterator[R]:
    """No engine: the CPUs of this machine."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for future in as_completed([pool.submit(run, task) for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def dask(run: Callable[[T], R], tasks: Iterable[T], address: str | None) -> Iterator[R]:
    """Dask distributed: the scheduler at an address, or workers on this machine."""
    from distributed import Client, LocalCluster, as_completed

    with contextlib.ExitStack() as stack:
        if address is None:
            dashboard = "127.0.0.1:0"
            cluster = LocalCluster(
                n_workers=os.cpu_count(), threads_per_worker=1, host="127.0.0.1", dashboard_address=dashboard
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        else:
            client = stack.enter_context(Client(address, timeout="30s"))
        print(f"dashboard: {client.dashboard_link}")
        futures = [client.submit(run, task, retries=RETRIES, pure=False) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
            future.release()


def ray(run: Callable[[T], R], tasks: Iterable[T], address: str | None) -> Iterator[R]:
    """Ray: the cluster at an address, or this machine."""
    import ray as engine

    engine.init(address=address, include_dashboard=address is not None, log_to_driver=False)
    try:
        remote = engine.remote(max_retries=RETRIES, retry_exceptions=True)(run)
        waiting = [remote.remote(task) for task in tasks]
        while waiting:
            ready, waiting = engine.wait(waiting)
            yield from engine.get(ready)
    finally:
        engine.shutdown()


def spark(run: Callable[[T], R], tasks: Iterable[T], address: str | None) -> Iterator[R]:
    """Spark: the master at an address, or this machine. A task is a partition."""
    from pyspark.sql import SparkSession

    master = address or f"local[{os.cpu_count()},{RETRIES + 1}]"
    builder = SparkSession.builder.master(master).appName("omr-fleet")
    if address is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.task.maxFailures", RETRIES + 1).getOrCreate()
    try:
        todo = list(tasks)
        if todo:
            yield from (
                session.sparkContext.parallelize(todo, len(todo)).map(run).toLocalIterator(prefetchPartitions=True)
            )
    finally:
        session.stop()


ENGINES = {"local": local, "dask": dask, "ray": ray, "spark": spark}
