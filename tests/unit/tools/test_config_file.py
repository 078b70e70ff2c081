"""Changes to the configuration file: what a person wrote stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specollama.config.loading import load_config
from specollama.errors import ConfigError, RunError
from specollama.spec_decode.types import Route
from specollama.tools.doctor import config_file
from specollama.tools.doctor.suggestions import InstalledModel, make_suggestion

WRITTEN = """\
# ours
default_pair = 'coder'   # not the other

[endpoints.here]
url = "http://127.0.0.1:11434"

[pairs.other]
target = { model = "a" }
draft = { model = "b" }

[pairs.coder]  # the one that counts
draft = {   model = "small", endpoint = "here" }
target = { model = "big", endpoint = "here" }
# as it came out best
lanes = 4
"""


def pair(target: str, draft: str, endpoint: str = "here") -> object:
    return make_suggestion(*(InstalledModel(name, endpoint, "http://here", 1, None, ()) for name in (target, draft)))


def test_keys_are_set_in_their_pair_and_all_else_stays() -> None:
    changed = config_file.set_pair_keys(WRITTEN, "coder", {"route": "local", "lanes": 8})
    assert changed == WRITTEN.replace("lanes = 4\n", 'lanes = 8\nroute = "local"\n')


def test_pairs_are_added_beside_those_that_are_there() -> None:
    changed, added = config_file.add_pairs(WRITTEN, [pair("coder", "x"), pair("qwen3:8b", "qwen3:0.6b")])  # type: ignore[list-item]
    assert added == ["qwen3-8b"]
    assert changed.startswith(WRITTEN)
    assert changed.removeprefix(WRITTEN).strip().splitlines() == [
        "[pairs.qwen3-8b]",
        'target = {model = "qwen3:8b", endpoint = "here"}',
        'draft = {model = "qwen3:0.6b", endpoint = "here"}',
    ]


def test_a_new_file_holds_what_was_added(tmp_path: Path) -> None:
    text, added = config_file.add_pairs("", [pair("qwen3:8b", "qwen3:0.6b", "")])  # type: ignore[list-item]
    file = tmp_path / "specollama.toml"
    config_file.write_config(file, text)
    assert added == ["qwen3-8b"]
    assert load_config(file).pair("qwen3-8b", {}).route is Route.AUTO


def test_a_name_with_a_dot_stays_one_name(tmp_path: Path) -> None:
    text, _ = config_file.add_pairs("", [pair("qwen2.5", "qwen2.5:0.5b", "")])  # type: ignore[list-item]
    config_file.write_config(tmp_path / "a.toml", text)
    assert list(load_config(tmp_path / "a.toml").table.pairs) == ["qwen2.5"]
    changed = config_file.set_pair_keys(text, "qwen2.5", {"route": "plain"})
    assert changed.count("qwen2.5") == text.count("qwen2.5")


def test_what_would_be_no_configuration_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "specollama.toml"
    file.write_text(WRITTEN)
    with pytest.raises(ConfigError, match=r"pairs\.coder\.lanes = 0: must be 1 or more"):
        config_file.write_config(file, config_file.set_pair_keys(WRITTEN, "coder", {"lanes": 0}))
    assert file.read_text() == WRITTEN
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_and_the_files_rights_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "real.toml", tmp_path / "specollama.toml"
    file.write_text(WRITTEN)
    file.chmod(0o600)
    link.symlink_to(file)
    config_file.write_config(link, WRITTEN + "# more\n")
    assert link.is_symlink()
    assert file.read_text().endswith("# more\n")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_can_not_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="can't be written: No such file or directory"):
        config_file.write_config(tmp_path / "nowhere" / "a.toml", WRITTEN)
    (tmp_path / "latin.toml").write_bytes("# ä".encode("latin-1"))
    with pytest.raises(ConfigError, match="can't be read"):
        config_file.read_config(tmp_path / "latin.toml")
    assert config_file.read_config(tmp_path / "none.toml") == ""
    assert os.path.exists(tmp_path / "latin.toml")
