"""How well published models predict further records, by the code of one checkout.

Run by path, as ``python -P published_quality.py HOME MODELS NAME…``, perhaps with another checkout
in ``PYTHONPATH``. The model of each agent is in the folder ``MODELS/NAME``, its records in the
replay buffer of ``HOME/agents/NAME``. Prints a JSON object of `Quality` by name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Measure every model."""
    import torch

    from infrastructure.trajectories import ReplayBuffer
    from infrastructure.world_model import WorldModel
    from infrastructure.world_model.fitting.scoring import PRIMARY, measure

    torch.set_num_threads(1)
    _, home, models, *names = sys.argv
    qualities = {}
    for name in names:
        model = WorldModel.load(Path(models) / name).fitted_model
        if model is None or model.codec.success_label is None:
            raise SystemExit(f"the model of {name} predicts no success")
        transitions = list(ReplayBuffer(Path(home) / "agents" / name / "replay").read())
        outcomes = model.codec.outcomes(transitions)
        predicted = model.predict_transitions(transitions)
        target, label = model.codec.success_label
        chance_N = predicted[target].probabilities[:, label]  # type: ignore[union-attr]
        right_N = (chance_N > 0.5) == (outcomes[target] == label)
        qualities[name] = {
            "accuracy": float(right_N.double().mean()),
            "nats": measure(predicted, outcomes, model.codec)[PRIMARY],
        }
    print(json.dumps(qualities))


if __name__ == "__main__":
    main()
