"""Shards and results on an object store: a real server (moto) that speaks S3."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from omr_fleet import replay, run

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


@contextmanager
def asks_for_rights() -> Iterator[None]:
    """The server looks at the rights of users, as it does not by default."""

    def free_requests(count: bytes) -> None:
        url = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
        urlopen(Request(url, count, {"Content-Type": "text/plain"})).close()

    free_requests(b"0")
    try:
        yield
    finally:
        free_requests(b"inf")


RIGHTS = ["s3:ListBucket", "s3:GetObject", "s3:PutObject"]


@pytest.mark.parametrize(
    ("rights", "named"),
    [(RIGHTS, None), (RIGHTS[:2], "fleet/out-2"), (RIGHTS[:1], "fleet/weeks-1"), ([], "fleet/weeks-0")],
    ids=["all", "reads", "lists", "none"],
)
def test_a_bucket_without_rights_is_named(
    rights: list[str], named: str | None, omr: str, fleet: Path, bucket: str, tmp_path: Path, monkeypatch
) -> None:
    import boto3
    import s3fs

    weeks, out = (f"{bucket}/{name}-{len(rights)}" for name in ("weeks", "out"))
    s3fs.S3FileSystem().put(str(fleet / "good"), weeks, recursive=True)
    iam = boto3.client("iam")
    user = f"user-{len(rights)}"
    iam.create_user(UserName=user)
    if rights:
        allowed = {"Effect": "Allow", "Action": rights, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName=user, PolicyName="rights", PolicyDocument=policy)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(replay, "PAUSE", 0.0)
    with asks_for_rights():
        if named is None:
            assert run.fleet(weeks, POLICIES, out, omr, quiet=True)["shards"] > 0
            # The user may not make this bucket.
            with pytest.raises((OSError, replay.ReplayError), match="s3://nothing/out: "):
                run.fleet(weeks, POLICIES, "s3://nothing/out", omr, quiet=True)
            return
        with pytest.raises((OSError, replay.ReplayError), match=f"s3://{named}: "):
            run.fleet(weeks, POLICIES, str(tmp_path) if "weeks" in named else out, omr, quiet=True)
