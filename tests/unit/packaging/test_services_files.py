"""The Dockerfile, the systemd unit, and the pre-commit hooks: each is parsed, and names what is there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import click
import pytest
import typer
import yaml

from specollama.cli import app
from specollama.cli.command_table import load
from specollama.server.proxy.systemd_unit import user_unit
from tests.support.calls import Call
from tests.support.calls import call as call
from tests.support.calls import nothing_set as nothing_set

ROOT = Path(__file__).parents[3]
KNOWN = {"FROM", "COPY", "RUN", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with its words; lines that end in a backslash go on."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def serve_parameters(words: list[str]) -> dict[str, object]:
    """What `specollama serve` makes of these words; click raises where it takes them not."""
    parent = click.Context(typer.main.get_command(app))
    return dict(load("serve").make_context("serve", words, parent=parent).params)


def parsed(unit: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    return parser


def test_the_dockerfile_copies_what_exists_and_what_dockerignore_lets_through() -> None:
    found = instructions()
    assert found[0][0] == "FROM"
    assert {word for word, _ in found} <= KNOWN
    sources = [source for word, rest in found if word == "COPY" for source in rest.split()[:-1]]
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sources) == sorted(allowed)
    assert all((ROOT / source).exists() for source in sources)


def test_the_container_serves_on_the_port_that_it_exposes_as_a_user_without_rights() -> None:
    found = dict(instructions())
    entry, words = json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])
    assert (entry, words[0]) == (["specollama"], "serve")
    parameters = serve_parameters(words[1:])
    assert (parameters["host"], str(parameters["port"])) == ("0.0.0.0", found["EXPOSE"])
    assert f":{found['EXPOSE']}/healthz" in found["HEALTHCHECK"]
    order = [word for word, _ in instructions()]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert found["USER"] in found["RUN"]


def test_the_unit_runs_the_same_configuration_and_options_from_any_directory(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "my pairs.toml"
    file.write_text("")
    shown = call("serve", "--config", file.name, "--port", "4000", "--print-unit")
    assert (shown.code, shown.err) == (0, "")
    unit = parsed(shown.out)
    assert unit.sections() == ["Unit", "Service", "Install"]
    command = shlex.split(unit["Service"]["ExecStart"])
    assert command[:4] == [sys.executable, "-m", "specollama", "serve"]
    parameters = serve_parameters(command[4:])
    assert (parameters["config"], parameters["port"], parameters["host"]) == (file, 4000, "127.0.0.1")
    assert unit["Install"]["WantedBy"] == "default.target"
    assert unit["Service"]["ExecReload"].endswith("-HUP $MAINPID")  # what makes `serve` read the configuration again


def test_a_wrong_configuration_gives_no_unit(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("nonsense = 1")
    shown = call("serve", "--config", "c.toml", "--print-unit")
    assert (shown.code, shown.out) == (2, "")


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/opt/py", "/opt/py"),
        ("a b", '"a b"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "hi"', '"say \\"hi\\""'),
        ("", '""'),
    ],
)
def test_words_of_the_command_mean_themselves_to_systemd(word: str, written: str) -> None:
    assert f"ExecStart=/bin/x {written}\n" in user_unit(["/bin/x", word])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "specollama.service"
    file.write_text(user_unit([sys.executable, "-m", "specollama", "serve", "--config", "a b"]))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if file.name in line]) == (0, [])


def test_pre_commit_runs_the_lines_of_scripts_check_with_the_same_tools() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    entries = [hook["entry"] for hook in hooks[0]["hooks"]]
    lines = (ROOT / "scripts" / "check").read_text().splitlines()
    checks = [line for line in lines if line.startswith((".venv/", "scripts/")) and line != "scripts/setup"]
    assert entries == checks
