"""Attempts as Kubernetes Jobs: plain HTTPS to the API server, no client library."""

from genesis_fp16.executors.kubernetes.engine import KubernetesEngine

__all__ = ["KubernetesEngine"]
