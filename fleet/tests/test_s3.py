"""Shards and results on an object store: a real server (moto) that speaks S3."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from omr_fleet import run

from .conftest import POLICIES

pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import s3fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        fs = s3fs.S3FileSystem()
        # The server forgets nothing between tests of one process.
        if not fs.exists("fleet"):
            fs.mkdir("fleet")
        yield "s3://fleet"
        s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.stop()


def test_shards_and_results_on_s3(omr: str, fleet: Path, total: bytes, bucket: str) -> None:
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.put(str(fleet / "mixed"), "fleet/weeks", recursive=True)
    for _ in range(2):
        told = run.fleet(f"{bucket}/weeks", POLICIES, f"{bucket}/out", omr, per_group=3, quiet=True)
        assert told == json.loads(total)
        assert fs.cat_file("fleet/out/total.json") == total


def test_a_bucket_that_is_not_there(omr: str, fleet: Path, bucket: str, tmp_path: Path) -> None:
    with pytest.raises((OSError, run.Wrong)):
        run.fleet("s3://nothing/weeks", POLICIES, str(tmp_path), omr, quiet=True)
    with pytest.raises(run.Wrong, match="Not A Bucket"):
        run.fleet(str(fleet / "good"), POLICIES, "s3://Not A Bucket/out", omr, quiet=True)
