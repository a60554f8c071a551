"""The output head of a language model: what turns features into logits."""

from __future__ import annotations

from torch.nn import Module


class HeadError(ValueError):
    """A model has no module that is its output head.

    Args:
        kind: Class of the model.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"a preset with the head in FP32 was chosen, but {kind} names no output head: its "
            "get_output_embeddings() must return one of its modules. Choose a preset without "
            "_fp32_head, or name the head's module in keep_fp32"
        )


def output_head(model: Module) -> str:
    """Qualified name of the output head of *model*, a language model of transformers.

    Its weights may be those of the input embedding: kept in FP32, both are, in every copy.

    Raises:
        HeadError: It names none.
    """
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    for name, module in model.named_modules():
        if name and module is head:
            return str(name)
    raise HeadError(type(model).__name__)
