"""How a service's environment is written: each form by its exact lines, and what a shell makes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from specollama.tools.doctor.service_environment import Service, likely_service, lines_for, service_lines

ENVIRONMENT = {"OLLAMA_NUM_PARALLEL": "8", "LLAMA_ARG_SPEC_DRAFT_MODEL": "/my models/50%"}


@pytest.mark.parametrize(
    ("service", "written"),
    [
        (
            Service.SYSTEMD,
            (
                "sudo systemctl edit ollama.service",
                "    [Service]",
                '    Environment="OLLAMA_NUM_PARALLEL=8"',
                '    Environment="LLAMA_ARG_SPEC_DRAFT_MODEL=/my models/50%%"',
                "sudo systemctl restart ollama",
            ),
        ),
        (
            Service.LAUNCHD,
            (
                "launchctl setenv OLLAMA_NUM_PARALLEL 8",
                "launchctl setenv LLAMA_ARG_SPEC_DRAFT_MODEL '/my models/50%'",
                "osascript -e 'quit app \"Ollama\"' && open -a Ollama",
            ),
        ),
        (
            Service.DOCKER,
            (
                "docker rm -f ollama",
                "# below: --gpus=all, or --device, as it had before",
                "docker run -d --name ollama -v ollama:/root/.ollama -p 11434:11434 -e OLLAMA_NUM_PARALLEL=8 "
                "-e 'LLAMA_ARG_SPEC_DRAFT_MODEL=/my models/50%' ollama/ollama",
            ),
        ),
        (
            Service.WINDOWS,
            (
                "[Environment]::SetEnvironmentVariable('OLLAMA_NUM_PARALLEL', '8', 'User')",
                "[Environment]::SetEnvironmentVariable('LLAMA_ARG_SPEC_DRAFT_MODEL', '/my models/50%', 'User')",
                'Stop-Process -Name "ollama*"; Start-Process "$env:LOCALAPPDATA\\Programs\\Ollama\\ollama app.exe"',
            ),
        ),
        (
            Service.SHELL,
            ("OLLAMA_NUM_PARALLEL=8 LLAMA_ARG_SPEC_DRAFT_MODEL='/my models/50%' ollama serve",),
        ),
    ],
)
def test_the_lines_of_each_service(service: Service, written: tuple[str, ...]) -> None:
    assert service_lines(service, ENVIRONMENT) == written


def test_a_shell_gives_the_server_what_was_meant() -> None:
    odd = {"A": "it's", "B": 'a "b" $c `d` \\e'}
    [line] = service_lines(Service.SHELL, odd)
    show = 'python3 -c \'import json, os; print(json.dumps([os.environ["A"], os.environ["B"]]))\''
    told = subprocess.run(["sh", "-c", line.replace("ollama serve", show)], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == list(odd.values())


def test_powershell_ends_a_text_at_no_quote_within() -> None:
    assert "'it''s'" in service_lines(Service.WINDOWS, {"A": "it's"})[0]


def test_how_ollama_is_run_here(tmp_path: Path) -> None:
    unit = tmp_path / "ollama.service"
    assert likely_service("Linux", (unit,)) is Service.SHELL
    unit.touch()
    assert likely_service("Linux", (unit,)) is Service.SYSTEMD
    assert likely_service("Darwin", (unit,)) is Service.LAUNCHD
    assert likely_service("Windows", (unit,)) is Service.WINDOWS


def test_a_shell_starts_the_server_where_it_was() -> None:
    assert lines_for(Service.SHELL, "http://127.0.0.1:11500", {"A": "1"}) == (
        "OLLAMA_HOST=127.0.0.1:11500 A=1 ollama serve",
    )
    assert lines_for(Service.SHELL, "http://127.0.0.1:11434", {"A": "1"}) == ("A=1 ollama serve",)


def test_a_server_on_another_machine_goes_on_being_reached() -> None:
    """By itself Ollama would listen for its own machine alone."""
    for service in (None, Service.SHELL):
        for url, address in {
            "http://tower:11434": "0.0.0.0:11434",
            "http://tower:11500": "0.0.0.0:11500",
            "http://192.168.0.7:11434": "0.0.0.0:11434",
            "http://[fd00::7]:11434": "'[::]:11434'",
        }.items():
            assert lines_for(service, url, {"A": "1"}) == (f"OLLAMA_HOST={address} A=1 ollama serve",)
    assert lines_for(Service.SYSTEMD, "http://tower:11500", {"A": "1"}) == service_lines(Service.SYSTEMD, {"A": "1"})


def test_where_ollama_listens_behind_another_server_is_not_made_up() -> None:
    for url in (
        "https://tower:443",
        "https://tower:443/ollama",
        "http://tower:80/ollama",
        "http://127.0.0.1:80/ollama",
    ):
        assert lines_for(Service.SHELL, url, {"A": "1"}) == ("A=1 ollama serve",)
        assert "-p 11434:11434 -e A=1" in lines_for(Service.DOCKER, url, {"A": "1"})[-1]


def test_a_container_keeps_its_port_on_the_machine() -> None:
    for url in ("http://127.0.0.1:11500", "http://tower:11500"):
        assert lines_for(Service.DOCKER, url, {"A": "1"})[-1].endswith("-p 11500:11434 -e A=1 ollama/ollama")
