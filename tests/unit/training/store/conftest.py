"""S3 (moto's server), with a proxy between that answers 503, loses answers, breaks bodies and goes away."""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.training.store.s3_proxy import FaultProxy
from training.store import Store, bucket, manifests
from training.store import open_bucket as opening

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    """Port of a server with the bucket `nightshift`."""
    # A second of CPU, which the tests of local stores do not pay.
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "t", "aws_secret_access_key": "t", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="nightshift")
    yield port
    server.stop()


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The proxy, in the environment as the endpoint of S3; time-outs and waits are short."""
    made = FaultProxy(s3_port)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": made.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(opening, "READ_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(opening, "REQUEST_TIMEOUT", timedelta(seconds=10))
    monkeypatch.setattr(opening, "FIRST_WAIT", timedelta(milliseconds=10))
    monkeypatch.setattr(bucket, "CONFLICT_WAIT_SECONDS", 0.01)
    yield made
    made.close()


@pytest.fixture
def s3_store(proxy: FaultProxy, request: pytest.FixtureRequest) -> Store:
    """A store of the test's own behind `proxy`."""
    return Store("s3://nightshift/" + re.sub(r"\W+", "-", request.node.name))


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{request.getfixturevalue('s3_port')}"}.items():
        monkeypatch.setenv(name, value)
    return Store("s3://nightshift/" + re.sub(r"\W+", "-", request.node.name))


@pytest.fixture
def files_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of an artifact is an object, as large ones are."""
    monkeypatch.setattr(manifests, "PACKED_FILE_BYTES", -1)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))
