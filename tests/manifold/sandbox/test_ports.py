"""Ports are checked before anything starts."""

import os
import re
import socket

import pytest

from manifold.contracts.errors import Permanent
from manifold.sandbox.platform.ports import Port, free_ports, is_free, require_free
from manifold.settings import Settings
from tests.support.servers import free_port


def test_free_ports_are_no_problem() -> None:
    require_free("127.0.0.1", [Port("mqtt_port", free_port()), Port("redis_port", free_port())])


def test_a_port_in_use_is_named_with_its_user_and_the_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with pytest.raises(Permanent, match=rf"port {number} is in use by .* \(pid {os.getpid()}\).* MANIFOLD_MQTT_PORT="):
            require_free("127.0.0.1", [Port("mqtt_port", number)])
    assert is_free("127.0.0.1", number)


def test_all_problems_are_reported_at_once() -> None:
    twice = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = [Port("tap_port", twice), Port("redis_port", twice), Port("dispatcher_port", server.getsockname()[1], 1)]
        with pytest.raises(Permanent) as told:
            require_free("127.0.0.1", ports)
    first, second = str(told.value).splitlines()
    assert re.search(rf"port {twice} is configured twice, by tap_port and redis_port; .*MANIFOLD_REDIS_PORT=", first)
    assert "MANIFOLD_DISPATCHER_PORT=… (this is the port of replica 1)" in second


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(Permanent, match=r"cannot listen on 192\.0\.2\.1:.*MANIFOLD_HOST"):
        require_free("192.0.2.1", [Port("mqtt_port", free_port())])


def test_the_ports_for_another_platform_are_free_with_those_in_a_row() -> None:
    ports = free_ports()
    numbers = [*ports.values(), ports["dispatcher_port"] + 1, ports["amqp_port"] + 1, ports["amqp_port"] + 2]

    assert set(ports) <= set(Settings.model_fields)
    assert len(set(numbers)) == len(numbers)
    assert all(is_free("127.0.0.1", number) for number in numbers)
