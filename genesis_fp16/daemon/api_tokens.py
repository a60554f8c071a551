"""The tokens that the control API and the predictor accept on TCP, as the settings name them."""

from __future__ import annotations

import os

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings
from genesis_fp16.system import tokens


class TokenError(GenesisError, ValueError):
    """A token is missing, or the file of tokens cannot be used."""

    exit_code = os.EX_CONFIG


def open_tokens(settings: Settings) -> tokens.Tokens:
    """The tokens of *settings*.

    Raises:
        TokenError: The file of tokens cannot be used.
    """
    try:
        return tokens.Tokens(settings.api_token, settings.api_token_file)
    except tokens.TokenFileError as error:
        raise TokenError(str(error)) from error
