"""Names with our prefix that other programs read: one settings file may serve all of them."""

from __future__ import annotations

GENESIS_NAMES = frozenset(
    {
        "GENESIS_A2A_TOKEN",
        "GENESIS_ANALYST_MODEL",
        "GENESIS_API_KEY",
        "GENESIS_API_TOKENS",
        "GENESIS_BASE_PATH",
        "GENESIS_BASE_URL",
        "GENESIS_CONTENT_MODEL",
        "GENESIS_CREATED",
        "GENESIS_DASHBOARD_MAX_RETRIES",
        "GENESIS_DASHBOARD_URL",
        "GENESIS_DEPLOYMENT_STAGE",
        "GENESIS_DISABLE_FILE_LOGS",
        "GENESIS_ENV",
        "GENESIS_FAST_HTDAG",
        "GENESIS_LEGAL_MODEL",
        "GENESIS_MEMORY_MOCK",
        "GENESIS_MEMORY_STRICT",
        "GENESIS_MODEL_NAME",
        "GENESIS_MODEL_VERSION",
        "GENESIS_QA_MODEL",
        "GENESIS_SECURITY_MODEL",
        "GENESIS_SUPPORT_MODEL",
        "GENESIS_VERSION",
    }
)
"""Settings of Genesis: its code reads them, or its documents tell operators to set them."""

CLIENT_NAMES = frozenset({"GENESIS_PREDICT_URL", "GENESIS_PREDICT_SOCKET", "GENESIS_PREDICT_TOKEN"})
"""Settings of genesis-client."""
