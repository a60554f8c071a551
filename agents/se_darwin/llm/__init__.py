"""The proposer ``llm``: a language model behind an OpenAI-compatible endpoint (extra ``llm``).

It sends the module under repair, with masked secrets, only where the user names a URL and a model.
"""

from agents.se_darwin.llm.options import LLMOptions

__all__ = ["LLMOptions"]
