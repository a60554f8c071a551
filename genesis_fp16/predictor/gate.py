"""Who may ask: anyone who may open the Unix socket; on TCP, who sends a token with the role."""

from __future__ import annotations

from typing import Literal

from starlette.types import Scope

from genesis_fp16.predictor.problems import ProblemError
from genesis_fp16.system.tokens import ROLES, Tokens

Role = Literal["read", "ask", "operate"]


class Gate:
    """Checks the token of each request that comes over TCP."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def check(self, scope: Scope, authorization: bytes | None, needed: Role) -> None:
        """Let a request in, or refuse it.

        Raises:
            ProblemError: The token is missing, wrong or expired, or lacks the role *needed*.
        """
        if scope["state"].get("listener") == "unix":
            return
        scheme, _, offered = (authorization or b"").decode("latin-1").partition(" ")
        token = self._tokens.find(offered) if scheme.lower() == "bearer" else None
        if token is None:
            raise ProblemError(
                401,
                "send a token of GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE that has not expired, "
                "in the header Authorization: Bearer",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if ROLES.index(token.role) < ROLES.index(needed):
            raise ProblemError(
                403, f"the token {token.name} has the role {token.role}, this needs {needed}"
            )
