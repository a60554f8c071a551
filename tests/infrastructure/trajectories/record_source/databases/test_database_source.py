from __future__ import annotations

import sys

import pytest

from infrastructure.agent_contract.agent import MisconfiguredError


@pytest.mark.parametrize(("kind", "driver"), [("redis", "redis"), ("mongodb", "pymongo")])
def test_without_its_driver_the_extra_is_named(home_of, monkeypatch, kind, driver):
    monkeypatch.setitem(sys.modules, driver, None)
    home = home_of(f'kind = "{kind}"\nurl = "{kind}://localhost"')
    with pytest.raises(MisconfiguredError, match=rf"genesis-fp16\[{kind}\]"):
        home.run()
