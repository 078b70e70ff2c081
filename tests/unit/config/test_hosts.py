"""Addresses of servers. The first two tables are those of Ollama's own tests (envconfig/config_test.go)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.config.endpoints import Endpoint, on_different_machines, redacted, resolve_host, server_url
from specollama.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("1.2.3.4:1234", "http://1.2.3.4:1234"),
        ("example.com", "http://example.com:11434"),
        ("example.com:1234", "http://example.com:1234"),
        ("[::1]", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]:1337", "http://[::1]:1337"),
        (" 1.2.3.4 ", "http://1.2.3.4:11434"),
        ('"1.2.3.4"', "http://1.2.3.4:11434"),
        (' " 1.2.3.4 " ', "http://1.2.3.4:11434"),
        ("'1.2.3.4'", "http://1.2.3.4:11434"),
        ("http://1.2.3.4", "http://1.2.3.4:80"),
        ("http://1.2.3.4:4321", "http://1.2.3.4:4321"),
        ("https://1.2.3.4", "https://1.2.3.4:443"),
        ("https://1.2.3.4:4321", "https://1.2.3.4:4321"),
        ("https://example.com/ollama", "https://example.com:443/ollama"),
        ("https://example.com/ollama/", "https://example.com:443/ollama"),
        ("ollama.com", "https://ollama.com:443"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(value: str, url: str) -> None:
    assert resolve_host({"OLLAMA_HOST": value}).url == url


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234"),
        ("[::]", "http://[::1]:11434"),
        ("[::]:1234", "http://[::1]:1234"),
        ("https://0.0.0.0:4321", "https://127.0.0.1:4321"),
        (":1234", "http://127.0.0.1:1234"),
        (":0", "http://127.0.0.1:0"),
    ],
)
def test_all_addresses_of_a_server_are_reached_as_this_machine(value: str, url: str) -> None:
    assert resolve_host({"OLLAMA_HOST": value}).url == url


@pytest.mark.parametrize(
    ("one", "other", "told_apart"),
    [
        ("http://127.0.0.1:11434", "http://localhost:11435", False),
        ("http://[::1]:11434", "http://127.0.0.2:1", False),
        ("http://tower:11434", "http://tower:11435/ollama", False),
        ("http://tower:11434", "http://localhost:11434", True),
        ("https://10.0.0.2", "https://10.0.0.3", True),
    ],
)
def test_machines_are_told_apart_by_their_names(one: str, other: str, told_apart: bool) -> None:
    assert on_different_machines(one, other) is told_apart


@pytest.mark.parametrize("port", ["66000", "-1", "", "port", "1_0", "1e3"])
def test_a_wrong_port_in_ollama_host_becomes_the_default_as_for_ollama(port: str) -> None:
    assert resolve_host({"OLLAMA_HOST": f"tower:{port}"}).url == "http://tower:11434"
    assert resolve_host({"OLLAMA_HOST": f"https://tower:{port}"}).url == "https://tower:443"


def test_the_source_of_the_address_is_known() -> None:
    assert str(resolve_host({"OLLAMA_HOST": "tower"})) == "http://tower:11434 (set by OLLAMA_HOST)"
    assert str(resolve_host({})) == "http://127.0.0.1:11434 (set by default)"
    assert resolve_host({"OLLAMA_HOST": "''"}).source == "default"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ftp://tower", 'OLLAMA_HOST = "ftp://tower": the scheme must be http or https'),
        (
            "two words",
            'OLLAMA_HOST = "two words": "two words" is no host; give a name or an IP address, as tower:11434',
        ),
        (
            "[::x",
            'OLLAMA_HOST = "[::x": "[::x" is no host; give a name or an IP address, as tower:11434',
        ),
        (
            "me:hunter2@tower",
            "OLLAMA_HOST = (not shown): a user or password in a URL is refused;"
            " name the variable with the token as token_env",
        ),
    ],
)
def test_an_ollama_host_that_no_client_can_reach_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_host({"OLLAMA_HOST": value})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("tower", "http://tower:11434"),
        ("tower:80", "http://tower:80"),
        ("HTTPS://Tower/", "https://Tower:443"),
        ("http://tower/behind/proxy/", "http://tower:80/behind/proxy"),
        ("::1", "http://[::1]:11434"),
    ],
)
def test_a_server_is_a_host_or_a_url(text: str, url: str) -> None:
    assert server_url(text) == url


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tower:66000", '"66000" is no port; it must be a number from 0 to 65535'),
        ("tower:", '"" is no port; it must be a number from 0 to 65535'),
        (
            "http://u:p@tower",
            "a user or password in a URL is refused; name the variable with the token as token_env",
        ),
        ("http://", "must be a host or a URL, as tower:11434 or https://tower/ollama"),
        ("http://tower/?a=1", "must be a host or a URL, as tower:11434 or https://tower/ollama"),
        ("ws://tower", "the scheme must be http or https"),
    ],
)
def test_a_server_that_was_written_wrongly_is_not_guessed_at(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}$"):
        server_url(text)


@given(
    st.sampled_from(["http://", "https://", ""]),
    st.one_of(st.ip_addresses(v=4).map(str), st.from_regex(r"[a-z][a-z0-9-]{0,9}(\.[a-z]{2,3})?", fullmatch=True)),
    st.integers(0, 65535),
)
def test_reading_an_address_twice_changes_nothing(scheme: str, host: str, port: int) -> None:
    url = server_url(f"{scheme}{host}:{port}")
    assert server_url(url) == resolve_host({"OLLAMA_HOST": url}).url == url


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_a_fault(text: str) -> None:
    try:
        url = server_url(text)
    except ValueError:
        return
    assert url.startswith(("http://", "https://"))
    assert server_url(url) == url


def test_a_password_in_a_url_is_not_shown() -> None:
    assert redacted("m@http://me:hunter2@tower") == redacted("http://me:hunt/er2@tower") == "(not shown)"
    assert redacted("m@me:hunter2@tower") == "(not shown)"
    assert redacted("m@http://tower") == '"m@http://tower"'


SECURED = Endpoint(url="http://tower:11434", source="x.toml", name="tower", token_env="TOWER_TOKEN")


def test_the_token_is_read_from_its_variable() -> None:
    assert SECURED.token({"TOWER_TOKEN": " abc \n"}) == "abc"
    assert resolve_host({}).token({"TOWER_TOKEN": "abc"}) is None
    assert "abc" not in repr(SECURED)


def test_a_missing_token_names_the_variable_and_the_endpoint() -> None:
    with pytest.raises(ConfigError) as error:
        SECURED.token({"TOWER_TOKEN": ""})
    assert str(error.value) == (
        "the environment variable TOWER_TOKEN is not set;"
        " it has to hold the bearer token of endpoint tower, http://tower:11434"
    )


@pytest.mark.parametrize("token", ["two words", "a\r\nb", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused_unseen(token: str) -> None:
    with pytest.raises(ConfigError) as error:
        SECURED.token({"TOWER_TOKEN": token})
    assert str(error.value) == (
        "the environment variable TOWER_TOKEN holds spaces or characters that no HTTP header can carry;"
        " it has to hold the bearer token of endpoint tower, http://tower:11434"
    )
