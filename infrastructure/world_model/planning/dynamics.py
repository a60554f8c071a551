"""A fitted model as a function from states to next states, with the ensemble's members apart.

The standardisation of targets and the blend's weights are folded into the last layer, so that a
step is one batched product per layer. Rows stay with their member, as the particles of PETS' TS∞
do (Chua et al. 2018, arXiv:1805.12114).

Shapes: M members, N rows of each, H steps, X columns of the state and A of the action (see
`Layout`), D dense inputs, O raw outputs, Q folded ones (see `Heads`), E width of embedded text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from infrastructure.agent_contract.transition import Discrete
from infrastructure.trajectories.schema import MAX_MAGNITUDE, Values, is_empty
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.fitting.rollout_fields import NOT_IN_STATE, check_continued
from infrastructure.world_model.networks import EnsembleNetwork
from infrastructure.world_model.networks.network import layer_inputs
from infrastructure.world_model.networks.text import field_inputs
from infrastructure.world_model.planning.heads import Heads
from infrastructure.world_model.planning.layout import MORE_LABELS, ColumnEncoding, Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionRows:
    """Encoded actions of several steps.

    Attributes:
        raw: Columns, ``[H, N, A]`` float64, or ``[H, M, N, A]`` where members act differently.
        dense: Dense inputs, of the same leading sizes, float32.
        texts: Embedded texts, ``[H, M, N, E]`` float32; None without `Text`.
        linear: Share of texts in the linear model, ``[H, N, O]`` float32; None without `Text`.
        unknown: Columns of labels that the training data does not explain, of the sizes of *raw*,
            bool; None if there is none.
        unknown_dense: Their dense inputs, of the sizes of *dense*, bool; None like *unknown*.
    """

    raw: Tensor
    dense: Tensor
    texts: Tensor | None = None
    linear: Tensor | None = None
    unknown: Tensor | None = None
    unknown_dense: Tensor | None = None

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, rows_N: Tensor) -> ActionRows:
        """Select rows, in the given order."""
        return ActionRows(
            raw=self.raw.index_select(-2, rows_N),
            dense=self.dense.index_select(-2, rows_N),
            texts=None if self.texts is None else self.texts[:, :, rows_N],
            linear=None if self.linear is None else self.linear[:, rows_N],
            unknown=None if self.unknown is None else self.unknown.index_select(-2, rows_N),
            unknown_dense=(
                None if self.unknown_dense is None else self.unknown_dense.index_select(-2, rows_N)
            ),
        )

    def one(self, number: int) -> ActionRows:
        """Only the step *number*."""
        return ActionRows(
            raw=self.raw[number, None],
            dense=self.dense[number, None],
            texts=None if self.texts is None else self.texts[number, None],
            linear=None if self.linear is None else self.linear[number, None],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Result of one step.

    Attributes:
        state: Next states, ``[M, N, X]`` float64.
        reward: Mean of the learned reward, ``[M, N]`` float32; 0 if none is learned.
        ends: Probability that the trajectory ends, ``[M, N]`` float32; None if no target says so.
    """

    state: Tensor
    reward: Tensor
    ends: Tensor | None


class Dynamics:
    """Predicts next states from states and actions, all of them columns.

    Args:
        model: Fitted model.
        reward: Scalar `Box` target to return as the reward; None for none.
        hold: Fields of the observation that are not targets and keep their values.

    Attributes:
        observation, action: Columns of states and actions.
        members: Number of members.

    Raises:
        ValueError: A field of the observation is a `Text`, or nothing says how it continues.
    """

    def __init__(
        self, model: FittedModel, *, reward: str | None = None, hold: Sequence[str] = ()
    ) -> None:
        spec, self._model, self._network = model.spec, model, model.ensemble
        check_continued(spec, model.encoder.constant, hold)
        self.observation = Layout("observation", spec.observation)
        self.action = Layout("action", spec.action)
        self._states = ColumnEncoding.of(model.encoder, self.observation)
        self._actions = ColumnEncoding.of(model.encoder, self.action)
        self._heads = Heads(model, self.observation, reward)
        self._end = _end_label(model)
        self._labels = {
            name: head
            for name, head in self._heads.labels.items()
            if name in self.observation.columns and name not in NOT_IN_STATE
        }
        self._texts = [name for name in model.linear.shape.texts if name.startswith("action.")]
        fold, exact = self._heads.fold, self._heads.without_noise
        offset = torch.zeros(fold.shape[1])
        offset[self.observation.width] = self._heads.reward_offset
        self._fold = (fold, offset)
        self._layers: list[tuple[Tensor, Tensor]] = []
        if type(self._network) is EnsembleNetwork:
            self.members = self._network.members
            pairs = zip(self._network.weights, self._network.biases, strict=True)
            *self._layers, last = [(w.detach().float(), b.detach().float()) for w, b in pairs]
            weight, bias = last[0] @ fold, last[1] @ fold + offset
            weight, bias = weight.mT.contiguous(), bias.mT.contiguous()  # a third of the time
            self._noisy = (weight, bias)
            self._exact = (weight[:, exact].contiguous(), bias[:, exact].contiguous())
        elif self._texts:
            raise ValueError("actions with Text can be rolled out by an EnsembleNetwork alone")
        else:
            dense = torch.zeros(1, model.linear.shape.dense)
            self.members = len(next(iter(self._network({"dense": dense}).values())))
        if self._heads.linear is not None:
            weight = model.linear.expanded_weight.detach()
            self._linear = (weight @ self._heads.linear, model.linear.bias @ self._heads.linear)

    def start(self, observations: Sequence[Values]) -> Tensor:
        """Columns of recorded *observations*, ``[N, X]`` float64; values may be missing.

        Numbers that are too large to be used count as missing.

        Raises:
            ValueError: See `read`.
        """
        raw_NX = self.read(observations)
        return raw_NX.masked_fill(raw_NX.abs() > MAX_MAGNITUDE, torch.nan)

    def read(self, observations: Sequence[Values]) -> Tensor:
        """Columns of recorded *observations* as they are given, ``[N, X]`` float64.

        Raises:
            ValueError: A field is of another type or shape, or infinite; or all are missing.
        """
        for observation in observations:
            if not isinstance(observation, Mapping):
                raise ValueError(
                    f"an observation must be a mapping of its fields, got {observation!r:.60}"
                )
            if is_empty(self._model.spec, observation, {}):
                names = ", ".join(map(repr, self.observation.fields))
                raise ValueError(
                    f"every field of the observation is missing ({names}), given are "
                    f"{sorted(observation)}"
                )
        return self.observation.read(observations, gaps=True)

    def draw_starts(
        self,
        observations: Sequence[Values],
        start_NX: Tensor,
        count: int,
        generator: torch.Generator,
    ) -> Tensor | None:
        """Draw *count* starts of each observation that differ in what is missing or unseen.

        A value that the training data does not explain becomes that of a training row, drawn by
        the weights of `Examples`. Of one observation all such values come from the same row.

        Args:
            start_NX: Columns of *observations*; see `start`.

        Returns:
            Columns, ``[count, N, X]`` float64; None if there is no such value.
        """
        encoder = self._model.encoder
        unknown_NX = self._states.is_unknown(start_NX)
        unknown_NX |= start_NX.isnan() & self._heads.changed  # else it would stay a gap
        examples = encoder.examples if bool(unknown_NX.any()) else None
        if examples is None:
            return None
        known_RX = self.observation.read(encoder.example_rows("observation"), gaps=True)
        features, width = encoder.encode(observations, [{}] * len(observations)), self._states.width
        unknown_ND = torch.zeros(len(observations), width, dtype=torch.bool)
        if features.unknown is not None:
            unknown_ND = features.unknown[:, :width]
        weights_NR = examples.first(width).weights(features.dense[:, :width], unknown_ND)
        lacks_RX = known_RX.isnan() | self._states.is_unknown(known_RX)
        drawn_CNX = start_NX.repeat(count, 1, 1)
        for row in unknown_NX.any(dim=1).nonzero()[:, 0].tolist():
            unknown_X = unknown_NX[row]
            usable_R = ~lacks_RX[:, unknown_X].any(dim=1)
            weights_R = weights_NR[row] * usable_R
            if not float(weights_R.sum()):
                continue
            order_R = known_RX[:, unknown_X][:, 0].argsort()  # low and high values in turn
            chosen_C = order_R[_strata(weights_R[order_R], count, generator)]
            drawn_CNX[:, row, unknown_X] = known_RX[chosen_C][:, unknown_X]
        return drawn_CNX

    def draw_places(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw where `act` looks among the examples for *draws* rows of each member.

        Returns:
            ``[M, draws]`` float64, evenly spread over (0, 1).
        """
        count = self.members * draws
        places = torch.randperm(count, generator=generator).double().add_(0.5) / count
        places_MD: Tensor = places.unflatten(0, (self.members, draws))
        return places_MD

    def act(
        self, state_MNX: Tensor, actions: ActionRows, number: int, places_MD: Tensor
    ) -> ActionRows:
        """Return step *number* of *actions*, with known labels instead of unknown ones.

        As a prediction does, it takes those of training rows that resemble state and action, by
        the weights of `Examples`.

        Args:
            places_MD: Quantile of the examples that is taken, for each of D equal parts of the
                rows; see `draw_places`.
        """
        step, encoder = actions.one(number), self._model.encoder
        examples = encoder.examples
        if actions.unknown is None or actions.unknown_dense is None or examples is None:
            return step
        members, rows, _ = state_MNX.shape
        raw_MNA, dense_MND, unknown_MNA, unknown_MND = (
            each[number].expand(members, rows, -1)
            for each in (actions.raw, actions.dense, actions.unknown, actions.unknown_dense)
        )
        row_MN = unknown_MNA.any(dim=-1)
        if not bool(row_MN.any()):
            return step
        known_RA = self._example_actions
        state_KD, unknown_KA = self._states.encode(state_MNX[row_MN]), unknown_MNA[row_MN]
        dense_KD = torch.cat([state_KD, dense_MND[row_MN]], dim=1)
        is_state_KD = torch.zeros_like(state_KD, dtype=torch.bool)
        unknown_KD = torch.cat([is_state_KD, unknown_MND[row_MN]], dim=1)
        lacks_RA = self._actions.is_unknown(known_RA)
        usable_KR = unknown_KA.double() @ lacks_RA.double().T == 0
        order_R = (known_RA.nan_to_num() @ torch.arange(self.action.width).double()).argsort()
        total_KR = (examples.weights(dense_KD, unknown_KD) * usable_KR)[:, order_R].cumsum(1)
        places_K = places_MD.repeat_interleave(rows // places_MD.shape[1], 1)[row_MN]
        wanted_K1 = (places_K * total_KR[:, -1])[:, None]
        found_K1 = torch.searchsorted(total_KR, wanted_K1, right=True)
        chosen_K = order_R[found_K1[:, 0].clamp(max=len(order_R) - 1)]
        is_found_K1 = total_KR[:, -1:] > 0
        raw_MNA, dense_MND, own = raw_MNA.clone(), dense_MND.clone(), self._states.width
        raw_MNA[row_MN] = torch.where(unknown_KA & is_found_K1, known_RA[chosen_K], raw_MNA[row_MN])
        dense_MND[row_MN] = torch.where(
            unknown_KD & is_found_K1, examples.dense[chosen_K], dense_KD
        )[:, own:]
        return replace(step, raw=raw_MNA[None], dense=dense_MND[None])

    @cached_property
    def _example_actions(self) -> Tensor:
        """Columns of the encoder's examples, ``[R, A]`` float64."""
        return self.action.read(self._model.encoder.example_rows("action"), gaps=True)

    def warnings(
        self, observation: Values, actions: Sequence[Values], *, is_in_range: bool, steps: int
    ) -> list[str]:
        """Return what is odd about *observation* and *actions*; see `Prediction.warnings`.

        Args:
            is_in_range: Whether all columns are.
            steps: Number of steps that are imagined.
        """
        start_1X = self.start([observation])
        lost_X = (self.lacks(start_1X[None])[0] & ~self._states.is_unknown(start_1X))[0]
        gaps = [
            f"observation.{name} is missing or undeclared, as in training: later steps draw it "
            "independently of what happens to the other fields"
            for name, columns in self.observation.columns.items()
            if steps > 1 and bool(lost_X[columns].any())
        ]
        return gaps + self._oddities(observation, actions, is_in_range=is_in_range)

    def _oddities(
        self, observation: Values, actions: Sequence[Values], *, is_in_range: bool
    ) -> list[str]:
        if is_in_range and not self._texts:
            return []
        steps: Sequence[Values] = actions or [{}]
        features = self._model.encoder.encode([observation] * len(steps), steps)
        remarks = dict.fromkeys(chain(*features.remarks()))  # each once
        return [text for text in remarks if actions or not text.startswith("action.")]

    def lacks(self, state_MNX: Tensor) -> Tensor:
        """Which columns are missing now and predicted as they will be, not as a change.

        An undeclared label counts as missing.
        """
        lacks_MNX = state_MNX.isnan()
        for name in self._labels:
            columns = self.observation.columns[name]
            others_MNL = state_MNX[..., columns][..., -MORE_LABELS:]
            lacks_MNX[..., columns] = others_MNL.any(dim=-1, keepdim=True)
        lacks_MNX &= self._heads.replaced
        return lacks_MNX

    def draw_quantiles(self, draws: int, generator: torch.Generator) -> Tensor:
        """Draw quantiles of each column for *draws* rows of each member, evenly spread.

        Returns:
            ``[M, draws, X]`` float64, in (0, 1).
        """
        count = self.members * draws
        places = [torch.randperm(count, generator=generator) for _ in range(self.observation.width)]
        quantiles = (torch.stack(places, dim=1).double() + 0.5) / count
        quantiles_MDX: Tensor = quantiles.unflatten(0, (self.members, draws))
        return quantiles_MDX

    def encode_columns(self, raw_HNA: Tensor) -> ActionRows:
        """Encode actions given as columns, float64; see `ActionRows`.

        Raises:
            ValueError: An action is a `Text`, which has no columns.
        """
        if self._texts:
            names = ", ".join(name.removeprefix("action.") for name in self._texts)
            raise ValueError(f"action {names} is Text: give recorded values instead of tensors")
        return self._action_rows(raw_HNA, self._actions.encode(raw_HNA))

    def encode_values(
        self, actions: Sequence[Values], steps: int = 1, *, gaps: bool = False
    ) -> ActionRows:
        """Encode recorded values: those of *steps* steps, step by step.

        Args:
            gaps: Whether values may be missing.

        Raises:
            ValueError: An action is not a mapping; or a field is of another type or shape,
                infinite, or missing without *gaps*.
        """
        rows = len(actions) // steps
        raw_HNA = self.action.read(actions, gaps=gaps).unflatten(0, (steps, rows))
        if not self._texts or not isinstance(self._network, EnsembleNetwork):
            return self._action_rows(raw_HNA, self._actions.encode(raw_HNA))
        features = self._model.encoder.encode([{}] * len(actions), actions)
        inputs, own = features.inputs(), self._states.width
        tables = dict(zip(self._model.linear.shape.texts, self._network.embeddings, strict=True))
        embedded = [tables[name](*field_inputs(inputs, name))[None] for name in self._texts]
        nothing = torch.empty(1, len(actions), 0)
        texts_MRE = layer_inputs(nothing, embedded, self.members, 0.0, [None])[0]
        linear = torch.stack(list(self._model.linear.text_outputs(inputs))).sum(0)
        unknown_RD = None if features.unknown is None else features.unknown[:, own:]
        action_rows = self._action_rows(
            raw_HNA,
            features.dense[:, own:].unflatten(0, (steps, rows)),
            None if unknown_RD is None else unknown_RD.unflatten(0, (steps, rows)),
        )
        return replace(
            action_rows,
            texts=texts_MRE.unflatten(1, (steps, rows)).transpose(0, 1),
            linear=linear.unflatten(0, (steps, rows)),
        )

    def _action_rows(
        self, raw_HNA: Tensor, dense_HND: Tensor, unknown_HND: Tensor | None = None
    ) -> ActionRows:
        """Action rows without texts.

        Args:
            unknown_HND: Which of the dense inputs are unknown, if they are not those of columns.
        """
        rows = ActionRows(raw=raw_HNA, dense=dense_HND)
        if not self._actions.labels:
            return rows
        unknown_HNA = self._actions.is_unknown(raw_HNA)
        if not bool(unknown_HNA.any()):
            return rows
        if unknown_HND is None:
            unknown_HND = self._actions.features_of(unknown_HNA)
        return replace(rows, unknown=unknown_HNA, unknown_dense=unknown_HND)

    def step(
        self,
        state_MNX: Tensor,
        actions: ActionRows,
        number: int,
        noise: torch.Generator | None = None,
        quantiles_MDX: Tensor | None = None,
    ) -> Step:
        """Predict one step, under step *number* of *actions*.

        Args:
            state_MNX: Current states, float64.
            noise: Generator that draws next states; None for means and likeliest labels.
            quantiles_MDX: In place of *noise*, quantiles of the next values of what the current
                states lack, for each of D equal parts of the rows; None for means and likeliest
                labels. See `draw_quantiles`.
        """
        heads, width = self._heads, self.observation.width
        members, rows, _ = state_MNX.shape
        action_MND = actions.dense[number].expand(members, rows, -1)
        dense_MND = torch.cat([self._states.encode(state_MNX), action_MND], dim=2)
        texts = None if actions.texts is None else actions.texts[number].expand(-1, rows, -1)
        output_MNQ = self._run(
            dense_MND, texts, noisy=noise is not None or quantiles_MDX is not None
        )
        change_MNX, reward_MN = output_MNQ[..., :width], output_MNQ[..., width]
        linear_MNQ = None
        if heads.linear is not None:
            weight, bias = self._linear
            linear_MNQ = self._model.linear.expand(dense_MND) @ weight + bias
            if actions.linear is not None:
                linear_MNQ = linear_MNQ + actions.linear[number] @ heads.linear
            change_MNX = change_MNX + linear_MNQ[..., :width]
            reward_MN = reward_MN + linear_MNQ[..., width]
        if noise is not None:
            change_MNX = change_MNX + heads.noise(output_MNQ, linear_MNQ, noise)
        quantiles_MNX, lacks_MNX = None, None
        if quantiles_MDX is not None:
            lacks_MNX = self.lacks(state_MNX)
            quantiles_MNX = quantiles_MDX.repeat_interleave(rows // quantiles_MDX.shape[1], 1)
            offset_MNX = heads.deviation(output_MNQ, linear_MNQ) * torch.special.ndtri(
                quantiles_MNX
            )
            change_MNX = change_MNX + torch.where(lacks_MNX, offset_MNX, 0.0)
        # A number that is missing stays missing, unless it is predicted.
        following_MNX = state_MNX.masked_fill(heads.replaced, 0.0).add_(heads.offset)
        following_MNX.add_(change_MNX)
        self._shift(following_MNX, state_MNX, actions.raw[number])
        for name, head in self._labels.items():
            probability_MNL = head.probabilities(output_MNQ, linear_MNQ)
            label_MN = _pick(probability_MNL, noise)
            columns = self.observation.columns[name]
            if quantiles_MNX is not None and lacks_MNX is not None:
                quantile_MN1 = quantiles_MNX[..., columns.start, None]
                drawn_MN = (probability_MNL.cumsum(-1)[..., :-1] < quantile_MN1).sum(-1)
                label_MN = torch.where(lacks_MNX[..., columns.start], drawn_MN, label_MN)
            one_hot = functional.one_hot(label_MN, columns.stop - columns.start)
            following_MNX[..., columns] = one_hot.double()
        ends_MN = None
        if self._end is not None:
            name, label = self._end
            ends_MN = heads.labels[name].probabilities(output_MNQ, linear_MNQ)[..., label]
        return Step(state=following_MNX, reward=reward_MN, ends=ends_MN)

    def is_in_range(self, state_MNX: Tensor, action_NA: Tensor) -> Tensor:
        """Whether no input is far outside the training data, ``[M, N]`` bool."""
        return self._states.is_in_range(state_MNX) & self._actions.is_in_range(action_NA)

    def _run(self, dense_MND: Tensor, texts_MNE: Tensor | None, *, noisy: bool) -> Tensor:
        """Run the network, each member on its own rows: ``[M, N, Q]``."""
        if not self._layers:
            members, rows, _ = dense_MND.shape
            raw = self._network({"dense": dense_MND.flatten(0, 1)})
            names = [f"{box}.{part}" for box in self._boxes for part in ("mean", "log_variance")]
            names += [f"{name}.logits" for name in self._heads.labels]
            all_MMNO = torch.cat([raw[name] for name in names], dim=2).unflatten(1, (members, rows))
            own = torch.arange(members)
            weight, bias = self._fold
            folded_MNQ: Tensor = all_MMNO[own, own].float() @ weight + bias
            return folded_MNQ
        hidden = dense_MND if texts_MNE is None else torch.cat([dense_MND, texts_MNE], dim=2)
        for weight, bias in self._layers:
            hidden = functional.silu(torch.baddbmm(bias, hidden, weight), inplace=True)
        weight, bias = self._noisy if noisy else self._exact
        return torch.baddbmm(bias, weight, hidden.mT).mT

    @property
    def _boxes(self) -> Sequence[str]:
        return tuple(self._model.linear.shape.boxes)

    def _shift(self, following_MNX: Tensor, state_MNX: Tensor, action_NA: Tensor) -> None:
        """Set the fields of earlier steps."""
        for name, (source, age) in self._model.spec.earlier_fields.items():
            columns = self.observation.columns[name]
            if age > 1:
                following_MNX[..., columns] = state_MNX[
                    ..., self.observation.columns[f"{source}[-{age - 1}]"]
                ]
            elif source in self.action.columns:
                following_MNX[..., columns] = action_NA[..., self.action.columns[source]]
            else:
                following_MNX[..., columns] = state_MNX[..., self.observation.columns[source]]


def _end_label(model: FittedModel) -> tuple[str, int] | None:
    """Target and position of the label that ends a trajectory; None if none was learned."""
    field = model.spec.targets.get("terminated")
    if not isinstance(field, Discrete) or "terminated" not in model.codec.heads:
        return None
    return ("terminated", field.values.index("true")) if "true" in field.values else None


def _strata(weights_R: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw *count* positions, one from each equal part of the total weight, in random order."""
    total_R = weights_R.cumsum(0)
    first = torch.rand(1, generator=generator, dtype=torch.float64)
    places_C = (torch.arange(count, dtype=torch.float64) + first) / count * total_R[-1]
    chosen_C = torch.searchsorted(total_R, places_C, right=True)
    return chosen_C[torch.randperm(count, generator=generator)]


def _pick(probability_MNL: Tensor, noise: torch.Generator | None) -> Tensor:
    """Positions of labels, ``[M, N]``: drawn, or the likeliest."""
    if noise is None:
        return probability_MNL.argmax(dim=-1)
    flat = probability_MNL.flatten(0, 1)
    return torch.multinomial(flat, 1, generator=noise).view(probability_MNL.shape[:2])
