"""The error of a host on which nothing can be run safely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_REMEDY = (
    "Run on Linux with seccomp filters, on x86-64 or 64-bit ARM, either with a kernel of 6.12 or "
    "later and Landlock, or as root, or with user namespaces allowed (sysctl "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container, a seccomp profile that permits unshare)"
)


class SandboxUnavailableError(RuntimeError):
    """This host cannot isolate candidates, so none is run.

    Args:
        missing: What a candidate could still do, or what the jail lacks.
        layers: What each layer of the jail reported.
        remedy: What to do about it.
    """

    def __init__(
        self, missing: Sequence[str], layers: Mapping[str, str], remedy: str = _REMEDY
    ) -> None:
        reported = ", ".join(f"{name}: {state}" for name, state in layers.items()) or "none"
        super().__init__(
            f"this host cannot isolate candidate programs: {'; '.join(missing)} (layers: "
            f"{reported}). {remedy}"
        )
        self.missing, self.layers = tuple(missing), dict(layers)
