"""Published models in the process of an agent that has torch: `genesis_fp16.models.open`.

Imports the library, no room of the daemon but the layout of the agents' folders.
"""

from genesis_fp16.models.opened import NoModelError, OpenedModel, open
from genesis_fp16.models.published import Mark, PublishedModel, load_published, mark_of

__all__ = [
    "Mark",
    "NoModelError",
    "OpenedModel",
    "PublishedModel",
    "load_published",
    "mark_of",
    "open",
]
