"""Where the API server is and how to sign in: a pod's service account, or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from genesis_fp16.executors.remote import EngineError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER_SERVER = "https://kubernetes.default.svc"
USER_CONFIG = Path("~/.kube/config")
_LONGEST_FILE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """How to reach one API server.

    Attributes:
        source: Where these credentials were found, for a person.
        host: Name or address of the server.
        port: Its port.
        prefix: Path before every request's own; usually empty.
        tls: Verifies the server and carries a client certificate, if there is one.
        namespace: The namespace that belongs to the credentials.
        token: Bearer token; empty if a token file or a certificate signs in.
        token_file: File of the bearer token, read for each request, because tokens rotate.
    """

    source: str
    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext
    namespace: str
    token: str = ""
    token_file: Path | None = None

    def bearer(self) -> str:
        """The bearer token as it is now; empty for none.

        Raises:
            EngineError: The token file cannot be read.
        """
        if self.token_file is None:
            return self.token
        try:
            return _read(self.token_file).strip()
        except OSError as error:
            raise EngineError(
                f"the Kubernetes token {self.token_file} cannot be read: {error}; "
                f"{self.source} names it",
                temporary=False,
            ) from error


def find_credentials(
    config: Path | None, context: str | None, service_account: Path = SERVICE_ACCOUNT
) -> Credentials:
    """The credentials in the file *config*, else the pod's, else those in ``~/.kube/config``.

    Args:
        config: A kubeconfig; None to look in the usual places.
        context: Context of the kubeconfig; None for its current one.
        service_account: Folder in which a pod finds its service account.

    Raises:
        EngineError: There are none, or they cannot be used; names the file and the remedy.
    """
    if config is None and (service_account / "ca.crt").is_file():
        return _in_cluster(service_account)
    path = (config or USER_CONFIG).expanduser()
    if config is None and not path.is_file():
        raise EngineError(
            f"no Kubernetes credentials: neither a service account in {service_account} nor "
            f"{path}; mount the service account's token (automountServiceAccountToken: true), or "
            "name a kubeconfig in GENESIS_KUBERNETES_CONFIG",
            temporary=False,
        )
    try:
        return _from_kubeconfig(path, context)
    except EngineError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        detail = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise EngineError(
            f"the kubeconfig {path} cannot be used: {detail}; correct it, or name another in "
            "GENESIS_KUBERNETES_CONFIG",
            temporary=False,
        ) from error


def _in_cluster(folder: Path) -> Credentials:
    try:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        namespace = _read(folder / "namespace").strip()
    except (OSError, ValueError) as error:
        raise EngineError(
            f"the service account in {folder} cannot be used: {error}; "
            "see serviceAccountName of this pod",
            temporary=False,
        ) from error
    return Credentials(
        source=f"the service account in {folder}",
        tls=tls,
        namespace=namespace,
        token_file=folder / "token",
        **_address(IN_CLUSTER_SERVER),
    )


def _from_kubeconfig(path: Path, context: str | None) -> Credentials:
    config = _parse(path, _read(path))
    name = context or config.get("current-context")
    if not name:
        raise ValueError("it has no current-context; set GENESIS_KUBERNETES_CONTEXT")
    chosen = _named(config, "contexts", "context", name)
    cluster = _named(config, "clusters", "cluster", chosen["cluster"])
    user = _named(config, "users", "user", chosen["user"])
    if cluster.get("insecure-skip-tls-verify"):
        raise ValueError("insecure-skip-tls-verify is refused; name the certificate-authority")
    for key in ("exec", "auth-provider", "username"):
        if user.get(key):
            raise ValueError(
                f"the user {chosen['user']} signs in by {key}, which is not supported; use a "
                "client certificate or a token, such as one of `kubectl create token`"
            )
    authority = _bytes_of(cluster, "certificate-authority", path)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if certificate := _bytes_of(user, "client-certificate", path):
        with tempfile.NamedTemporaryFile() as file:  # ssl reads only files; mode 600
            file.write(certificate + b"\n" + _bytes_of(user, "client-key", path))
            file.flush()
            tls.load_cert_chain(file.name)
    token_file = user.get("tokenFile")
    return Credentials(
        source=f"the context {name} of {path}",
        tls=tls,
        namespace=chosen.get("namespace") or "default",
        token=user.get("token") or "",
        token_file=path.parent / token_file if token_file else None,
        **_address(cluster["server"]),
    )


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)  # every JSON document is a YAML document
    except ValueError:
        config = _parse_yaml(path, text)
    if not isinstance(config, dict):
        raise ValueError("it is not a mapping")
    return config


def _parse_yaml(path: Path, text: str) -> object:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the kubeconfig {path} is YAML, which needs PyYAML: install genesis-fp16[kubernetes], "
            "or convert it with `kubectl config view --raw -o json`",
            temporary=False,
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not YAML: {error}") from error


def _named(config: dict[str, Any], group: str, kind: str, name: str) -> dict[str, Any]:
    for entry in config.get(group) or []:
        if entry["name"] == name:
            return entry[kind] or {}
    raise ValueError(f"it has no {kind} named {name}")


def _bytes_of(section: dict[str, Any], key: str, config: Path) -> bytes:
    """The file that *key* names, or the base64 text of *key*-data; empty if there is neither."""
    if text := section.get(f"{key}-data"):
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{key}-data is not base64: {error}") from error
    return (config.parent / section[key]).read_bytes() if section.get(key) else b""


def _address(server: str) -> dict[str, Any]:
    parts = urlsplit(server)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError(f"the server {server} is not an https:// address")
    return {"host": parts.hostname, "port": parts.port or 443, "prefix": parts.path.rstrip("/")}


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LONGEST_FILE).decode()
