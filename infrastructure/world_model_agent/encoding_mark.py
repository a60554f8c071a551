"""Notes in a run's folder how the run encodes its inputs, so that no other release mixes them up.

A checkpoint of a release that numbered the words of a text otherwise may have the same shape: it
would load, and each word would have the weights of another.
"""

from __future__ import annotations

from contextlib import suppress

from infrastructure.agent_contract import RunContext
from infrastructure.files import write_atomically
from infrastructure.trajectories.encoding import FeatureEncoder

_MARK = "encoding"  # in the run's folder; holds the encoder's format
_UNMARKED = "2"  # of a run without text fields and missing values, also of earlier releases


def set_aside_other_weights(context: RunContext, encoder: FeatureEncoder) -> None:
    """Rename the weights in the run's folder if another encoding than *encoder*'s trained them.

    The run then starts training over. The first attempt notes the encoding.

    Raises:
        OSError: The note cannot be read or written, or a file not be renamed.
    """
    mark, now = context.run_folder / _MARK, str(encoder.format)
    then = mark.read_text() if mark.exists() else _UNMARKED
    if then == now:
        return
    renamed = list[str]()
    ending = f"set-aside-{context.attempt}"
    for name, kept in (
        ("checkpoints", f"checkpoints.{ending}"),
        ("best-epoch.pt", f".best-epoch.pt.{ending}"),
    ):
        with suppress(FileNotFoundError):  # there is none, or another rank has renamed it
            renamed.append(str((context.run_folder / name).rename(context.run_folder / kept)))
    context.run_folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, now)
    if renamed:
        context.logger.warning(
            "checkpoints_of_other_encoding",
            reason="another release wrote them, which encodes texts or missing values otherwise",
            set_aside=", ".join(renamed),
            consequence="the run starts training over",
        )
