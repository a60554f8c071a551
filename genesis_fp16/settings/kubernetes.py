"""Settings of the executor that runs attempts as Kubernetes Jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict

from infrastructure.options.setting_types import OrEmpty

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9./]{0,251}[a-zA-Z0-9])?")
_FOLDER = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*", re.ASCII)
_FIXED = ("containers", "restartPolicy")  # of a pod; the daemon's own


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if text and not pattern.fullmatch(text):
            raise ValueError(f"it is not {what}")
        return text

    return AfterValidator(check)


def _check_pod(text: str) -> str:
    if not text:
        return text
    try:
        pod = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(pod, dict):
        raise ValueError('it is not a JSON object, such as {"nodeSelector": {"disk": "ssd"}}')
    if fixed := [key for key in _FIXED if key in pod]:
        raise ValueError(f"{' and '.join(fixed)} cannot be changed; remove them")
    return text


Label: TypeAlias = Annotated[str, _matching(_LABEL, "a name of lower-case letters, digits and -")]
Name: TypeAlias = Annotated[str, _matching(_NAME, "a name of lower-case letters, digits, - and .")]
Resource: TypeAlias = Annotated[str, _matching(_RESOURCE, "a resource, such as nvidia.com/gpu")]
Folder: TypeAlias = Annotated[str, _matching(_FOLDER, "a relative path, such as genesis/home")]
Pod: TypeAlias = Annotated[str, AfterValidator(_check_pod)]


class KubernetesSettings(BaseModel):
    """What `KubernetesEngine` reads; `Settings` inherits it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kubernetes_namespace: Label = ""
    """Namespace of the Jobs; empty: that of the credentials."""
    kubernetes_image: str = ""
    """Image of the workers' pods, usually the daemon's own; required with Kubernetes."""
    kubernetes_volume_claim: Name = ""
    """PersistentVolumeClaim that holds GENESIS_HOME, mounted by all pods."""
    kubernetes_volume_folder: Folder = ""
    """Folder of that volume to mount as GENESIS_HOME; empty: the whole volume."""
    kubernetes_gpu_resource: Resource = "nvidia.com/gpu"
    """Name under which the nodes offer their GPUs."""
    kubernetes_service_account: Name = ""
    """ServiceAccount of the workers' pods, which get no token; empty: the namespace's default."""
    kubernetes_secret: Name = ""
    """Secret whose entries become variables of the workers, e.g. the bucket's keys."""
    kubernetes_pod: Pod = ""
    """JSON object merged into the workers' pods, for example {"nodeSelector": {"gpu": "h200"}}."""
    kubernetes_config: OrEmpty[Path] = None
    """Kubeconfig; empty: the pod's service account, else ~/.kube/config."""
    kubernetes_context: OrEmpty[str] = None
    """Context of the kubeconfig; empty: its current one."""
