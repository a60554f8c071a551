import socket

import pytest

from benchmarks.measuring import ports


def test_a_port_is_free_and_none_that_a_connection_is_given():
    port = ports.free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert port < 32_768


def test_a_port_in_use_is_passed_over_and_an_end_of_them_said(monkeypatch):
    used = ports.free_port()
    free = ports.free_port()
    monkeypatch.setattr(ports, "PORTS", range(used, used + 1))
    monkeypatch.setattr(ports.SystemRandom, "sample", lambda _self, _ports, _count: [used, free])
    with socket.create_server(("127.0.0.1", used)):
        assert ports.free_port() == free
        monkeypatch.setattr(ports.SystemRandom, "sample", lambda _self, _ports, _count: [used])
        with pytest.raises(RuntimeError, match="is free from"):
            ports.free_port()
