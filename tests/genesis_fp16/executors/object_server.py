"""A real S3 server of this machine: `moto` in a process of its own, with checked signatures."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from tests.patience import wait_until

BUCKET = "models"
_STOP_SECONDS = 120.0


class ObjectServer:
    """The server, a bucket, and keys that may do everything in it.

    Attributes:
        variables: Environment in which clients find the server and the keys.
        url: URL of a place in the bucket, for `Bucket`.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / "moto.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._log = folder / "moto.log"
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        wait_until(self._port, "the port of moto", idle_seconds=30.0)
        self._address = f"http://127.0.0.1:{self._port()}"
        wait_until(self._answers, "moto's first answer", idle_seconds=30.0)
        self.variables = {
            "AWS_ENDPOINT_URL": self._address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "first",
            "AWS_SECRET_ACCESS_KEY": "first-secret-of-tests",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._make_user_and_bucket()
        self.url = f"s3://{BUCKET}/agents"

    def _port(self) -> int:
        assert self._process.poll() is None, self._log.read_text()
        listening = [
            connection.laddr.port
            for connection in psutil.Process(self._process.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        return listening[0] if listening else 0

    def _answers(self) -> bool:
        try:
            self._post("/moto-api/reset", b"")
        except OSError:
            return False
        return True

    def _post(self, path: str, body: bytes) -> None:
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(self._address + path, body, plain, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def _make_user_and_bucket(self) -> None:
        """Make them while moto takes any key; from then on it checks the signatures."""
        import botocore.session

        session = botocore.session.Session()
        session.set_credentials("first", "first-secret-of-tests")
        make = {"region_name": "us-east-1", "endpoint_url": self._address}
        with closing(session.create_client("s3", **make)) as s3:
            s3.create_bucket(Bucket=BUCKET)
        everything = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
        }
        user = {"UserName": "genesis"}
        with closing(session.create_client("iam", **make)) as iam:
            iam.create_user(**user)
            iam.put_user_policy(**user, PolicyName="all", PolicyDocument=json.dumps(everything))
            key = iam.create_access_key(**user)["AccessKey"]
        self.variables |= {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        self._post("/moto-api/reset-auth", b"0")

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Within the block the server accepts connections and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_STOP_SECONDS)
