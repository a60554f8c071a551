"""The precision that the settings allow, for programs that train without the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genesis_fp16.domain.redaction import visible
from genesis_fp16.settings.env_file import ROLLBACK_FLAG
from genesis_fp16.settings.settings import variable_name
from genesis_fp16.settings.source import SettingsError, load_settings
from infrastructure.events import PrecisionState


def library_precision(
    env_file: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> PrecisionState:
    """Read ``ENABLE_FP16_TRAINING`` and ``GENESIS_PRECISION`` as the daemon reads them.

    Pass the result to `WorldModel.train` (``precision=``), `train` (``precision=``) or
    `FP16Trainer` (``wish=``); they apply what the device can compute. It is read once: unlike a
    run of the daemon, a training that uses it does not follow later changes. Overrides, which the
    daemon stores, do not count. Other settings may be wrong.

    Args:
        env_file: The settings file, which must exist; by default ``GENESIS_ENV_FILE`` or ``.env``.
        environ: The environment; by default the process's own.

    Returns:
        FP32 with the reason ``flag`` if the file or the environment says false; otherwise
        ``GENESIS_PRECISION``.

    Raises:
        SettingsError: The file or the environment has a wrong value; the file no longer mentions a
            rollback; or a named file is missing or cannot be read.
    """
    if env_file is not None:
        env_file = Path(env_file)
        if not env_file.exists():
            shown = visible(str(env_file))
            problem = f"{shown}: the file does not exist; correct the name or create the file"
            raise SettingsError([problem])
    settings = load_settings(env_file, environ, only=(ROLLBACK_FLAG, variable_name("precision")))
    half = settings.precision
    if settings.enable_fp16_training:
        return PrecisionState(requested=half, effective=half, reason="default")
    return PrecisionState(requested=half, effective="fp32", reason="flag")
