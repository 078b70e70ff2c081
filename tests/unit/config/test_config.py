"""The configuration file: what it may hold, how it is found, and the one line that each fault gives."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.ollama import schema
from specollama.config import schema as config_schema
from specollama.config.endpoints import parse_model_at
from specollama.config.loading import Config, adhoc_pair, find_config, load_config
from specollama.config.schema import ConfigTable, OptionsTable, PairTable, Table
from specollama.config.settings import FileRef
from specollama.config.validation import ConfigLocation, validate_table
from specollama.errors import ConfigError, UsageError
from specollama.spec_decode.types import AcceptanceMethod, Route
from specollama.tools.review import decisions, prompts

WHOLE = """
default_pair = "coder"

[endpoints.tower]
url = "http://tower:11434/"
token_env = "TOWER_TOKEN"
connect_timeout = 2
idle_timeout = 30.5

[pairs.coder]
target = { model = "qwen2.5-coder:32b", endpoint = "tower" }
draft = { model = "qwen2.5-coder:0.5b" }
lookahead = 4
route = "lanes"
rule = "match"
lanes = 8
keep_alive = "30m"

[pairs.coder.options]
temperature = 0.2
stop = ["END"]

[pairs.other]
target = { model = "t@tower" }
draft = { model = "d@laptop:1234" }
"""
SMALL = '[pairs.one]\ntarget = { model = "t" }\ndraft = { model = "d" }\n'
TOKEN = {"TOWER_TOKEN": "abc"}


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "c.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def refusal(tmp_path: Path, text: str) -> str:
    """The message that the file gives, without the directory in front of the file's name."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    message = str(error.value)
    assert "\n" not in message
    assert "pydantic" not in message
    return message.removeprefix(f"{tmp_path}{os.sep}")


def test_every_key_reaches_the_settings_of_its_pair(tmp_path: Path) -> None:
    pair = load(tmp_path, WHOLE).pair("coder", TOKEN)
    assert (pair.name, pair.target.model) == ("coder", "qwen2.5-coder:32b")
    tower = pair.target.endpoint
    assert (tower.name, tower.url, tower.token(TOKEN)) == ("tower", "http://tower:11434", "abc")
    assert (tower.connect_timeout, tower.idle_timeout) == (2, 30.5)
    assert tower.source == f"{tmp_path / 'c.toml'}: endpoints.tower.url"
    assert (pair.lookahead, pair.route, pair.rule, pair.lanes) == (4, Route.LANES, AcceptanceMethod.MATCH, 8)
    assert (pair.keep_alive, pair.options) == ("30m", {"temperature": 0.2, "stop": ["END"]})


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    pair = load(tmp_path, SMALL).pair(None, {"OLLAMA_HOST": "box"})
    assert pair.draft is not None
    assert (pair.lookahead, pair.route, pair.rule) == ("auto", Route.AUTO, AcceptanceMethod.AUTO)
    assert (pair.lanes, pair.keep_alive, pair.options) == (None, None, {})
    assert pair.target.endpoint == pair.draft.endpoint
    assert str(pair.target.endpoint) == "http://box:11434 (set by OLLAMA_HOST)"


def test_a_chat_has_defaults_of_its_own(tmp_path: Path) -> None:
    chat = load(tmp_path, '[chat]\ntheme = "mono"\nhistory = false\n').table.chat
    assert (chat.theme, chat.history, chat.markdown) == ("mono", False, True)
    with pytest.raises(ConfigError, match=r'chat.theme = "pink": must be "default", "colourblind" or "mono"$'):
        load(tmp_path, '[chat]\ntheme = "pink"\n')


def test_a_model_may_name_its_server_after_an_at_sign(tmp_path: Path) -> None:
    pair = load(tmp_path, WHOLE).pair("other", TOKEN)
    assert pair.draft is not None
    assert (pair.target.model, pair.target.endpoint.name) == ("t", "tower")
    assert (pair.draft.model, pair.draft.endpoint.url) == ("d", "http://laptop:1234")
    assert pair.draft.endpoint.source == f"{tmp_path / 'c.toml'}: pairs.other.draft.model"


def test_a_wrong_ollama_host_matters_only_where_it_is_used(tmp_path: Path) -> None:
    environ = {**TOKEN, "OLLAMA_HOST": "ftp://box"}
    config = load(tmp_path, WHOLE)
    assert config.pair("other", environ).target.endpoint.name == "tower"
    assert wrong_pair(config, "coder", environ).startswith('OLLAMA_HOST = "ftp://box": ')


def test_the_options_are_those_that_ollama_has() -> None:
    assert set(OptionsTable.model_fields) == schema.SAMPLING_OPTIONS | schema.LOAD_OPTIONS


@pytest.mark.parametrize(
    ("given", "kept"),
    [('"30m"', "30m"), ('"1h2m3.5s"', "1h2m3.5s"), ("-1", -1), ("2.5", 2.5), ('"300"', 300)],
)
def test_keep_alive_is_a_duration_or_a_number_of_seconds(tmp_path: Path, given: str, kept: object) -> None:
    assert load(tmp_path, f"{SMALL}keep_alive = {given}").pair("one", {}).keep_alive == kept


def test_a_pair_without_a_draft_is_plain(tmp_path: Path) -> None:
    pair = load(tmp_path, '[pairs.one]\ntarget = { model = "t" }\nroute = "plain"').pair(None, {})
    assert (pair.draft, pair.route) == (None, Route.PLAIN)


ROUTES = "auto, local, lanes, scoring, greedy, native, plain"
LENGTHS = 'must be "auto", a whole number from 0, or a list of such from 1, round by round'
PAIR_KEYS = (
    "batch_threads, draft, draft_ahead, intercept, keep_alive, kv_type, lanes, lookahead, native, options, requantize, "
    "route, rule, target"
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "lokahead = 4",
            f"pairs.one.lokahead = 4: unknown key, did you mean lookahead? allowed: {PAIR_KEYS}",
        ),
        ("zzz = 1", f"pairs.one.zzz = 1: unknown key; allowed: {PAIR_KEYS}"),
        (
            "lookahead = -1",
            f"pairs.one.lookahead = -1: {LENGTHS}",
        ),
        (
            "lookahead = []",
            f"pairs.one.lookahead = []: {LENGTHS}",
        ),
        (
            "lookahead = [8, 0]",
            f"pairs.one.lookahead = [8, 0]: {LENGTHS}",
        ),
        (
            "lookahead = true",
            f"pairs.one.lookahead = true: {LENGTHS}",
        ),
        (
            'lookahead = "4"',
            f'pairs.one.lookahead = "4": {LENGTHS}',
        ),
        (
            'route = "fast"',
            'pairs.one.route = "fast": must be one of auto, local, lanes, scoring, greedy, native, plain',
        ),
        ("route = 1", "pairs.one.route = 1: must be one of auto, local, lanes, scoring, greedy, native, plain"),
        ('rule = "greedy"', 'pairs.one.rule = "greedy": must be one of auto, rejection, match'),
        ("lanes = 0", "pairs.one.lanes = 0: must be 1 or more"),
        (
            'keep_alive = "soon"',
            'pairs.one.keep_alive = "soon": must be a duration, as "30m", or a number of seconds (below 0: for ever)',
        ),
        (
            "keep_alive = true",
            'pairs.one.keep_alive = true: must be a duration, as "30m", or a number of seconds (below 0: for ever)',
        ),
        ('options.temperature = "hot"', 'pairs.one.options.temperature = "hot": must be a number'),
        ("options.temperature = nan", "pairs.one.options.temperature = nan: must be a number"),
        ("options.top_k = 1.5", "pairs.one.options.top_k = 1.5: must be a whole number"),
        ('options.stop = "END"', 'pairs.one.options.stop = "END": must be a list, in brackets: [...]'),
        ("options.use_mmap = 1", "pairs.one.options.use_mmap = 1: must be true or false"),
    ],
)
def test_a_wrong_line_in_a_pair_is_named_with_what_is_allowed(tmp_path: Path, line: str, message: str) -> None:
    assert refusal(tmp_path, SMALL + line) == f"c.toml: {message}"


def test_an_unknown_option_names_the_nearest_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, f"{SMALL}options.temprature = 1")
    options = ", ".join(sorted(schema.SAMPLING_OPTIONS | schema.LOAD_OPTIONS))
    assert message == (
        f"c.toml: pairs.one.options.temprature = 1: unknown option, did you mean temperature? allowed: {options}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[pairs.one]\ndraft = { model = "d" }',
            'pairs.one.target: missing; give it as target = { model = "qwen2.5-coder:32b" }',
        ),
        (
            '[pairs.one]\ntarget = { model = "t" }',
            'pairs.one.draft: missing; give it as draft = { model = "qwen2.5-coder:0.5b" },'
            ' or route = "plain", which drafts nothing',
        ),
        (
            "[pairs.one]\ntarget = {}",
            'pairs.one.target.model: missing; give it as model = "qwen2.5-coder:32b", or path = "FILE.gguf"',
        ),
        (
            '[pairs.one]\ntarget = { modle = "t" }',
            'pairs.one.target.modle = "t": unknown key, did you mean model? allowed: api, endpoint, model, path',
        ),
        (
            "[pairs.one]\ntarget = 3",
            "pairs.one.target = 3: must be a table; allowed in it: api, endpoint, model, path",
        ),
        (
            '[pairs.one]\ntarget = { model = "two words" }',
            'pairs.one.target.model = "two words":'
            " must be MODEL or MODEL@SERVER, as qwen2.5-coder:32b@http://tower:11434",
        ),
        ("pairs = 3", "pairs = 3: must be tables, each headed [pairs.NAME]"),
        (
            '[pairs."a b"]',
            "pairs.\"a b\" = (not shown): a name may hold letters, digits, '.', '_' and '-' only",
        ),
        (
            '[pair.one]\ntarget = { model = "t" }',
            "pair = (not shown): unknown key, did you mean pairs? "
            "allowed: chat, default_pair, endpoints, pairs, review, serve",
        ),
        (
            f'default_pair = "on"\n{SMALL}',
            'default_pair = "on": no such pair, did you mean one? allowed: one',
        ),
        ('default_pair = "one"', 'default_pair = "one": no such pair; allowed: none'),
    ],
)
def test_a_file_that_describes_no_pair_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == f"c.toml: {message}"


ENDPOINT_KEYS = "connect_timeout, idle_timeout, token_env, url"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", 'endpoints.e.url: missing; give it as url = "http://tower:11434"'),
        ("url = 3", "endpoints.e.url = 3: must be a URL, as http://tower:11434"),
        (
            'url = "tower:11434"',
            'endpoints.e.url = "tower:11434": must begin with http:// or https://, as http://tower:11434',
        ),
        ('url = "ftp://tower"', 'endpoints.e.url = "ftp://tower": the scheme must be http or https'),
        (
            'url = "http://me:hunter2@tower"',
            "endpoints.e.url = (not shown): a user or password in a URL is refused;"
            " name the variable with the token as token_env",
        ),
        (
            'url = "http://tower"\ntoken = "hunter2"',
            f"endpoints.e.token = (not shown): unknown key, did you mean token_env? allowed: {ENDPOINT_KEYS}",
        ),
        (
            'url = "http://tower"\nheaders = { Authorization = "hunter2" }',
            f"endpoints.e.headers = (not shown): unknown key; allowed: {ENDPOINT_KEYS}",
        ),
        (
            'url = "http://tower"\ntoken_env = "hunter-2"',
            "endpoints.e.token_env = (not shown): must be the name of an environment variable that holds the token",
        ),
        (
            'url = "http://tower"\nidle_timeout = 0',
            "endpoints.e.idle_timeout = 0: must be above 0",
        ),
    ],
)
def test_a_wrong_endpoint_is_named_and_its_secrets_are_not(tmp_path: Path, lines: str, message: str) -> None:
    assert refusal(tmp_path, f"[endpoints.e]\n{lines}") == f"c.toml: {message}"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            '{ model = "t", endpoint = "towr" }',
            'endpoint = "towr": no endpoint towr is defined, did you mean tower? allowed: tower',
        ),
        (
            '{ model = "t@towr" }',
            'model = "t@towr": no endpoint towr is defined, did you mean tower? allowed: tower'
            " (a host of that name: towr:11434)",
        ),
        (
            '{ model = "t@http://box", endpoint = "tower" }',
            'endpoint = "tower": the model names a server already; leave one of the two out',
        ),
        (
            '{ model = "t@box:99999" }',
            'model = "t@box:99999": "99999" is no port; it must be a number from 0 to 65535',
        ),
        (
            '{ model = "t@me:hunter2@box" }',
            "model = (not shown): a user or password in a URL is refused;"
            " name the variable with the token as token_env",
        ),
    ],
)
def test_a_model_on_a_server_that_is_none_is_refused(tmp_path: Path, target: str, message: str) -> None:
    text = f'[endpoints.tower]\nurl = "http://tower"\n[pairs.one]\ntarget = {target}\nroute = "plain"'
    assert refusal(tmp_path, text) == f"c.toml: pairs.one.target.{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = \n", "line 2, column 5: not valid TOML: Invalid value"),
        ('a = 1\nb = "', "line 2, column 6: not valid TOML: Unterminated string"),
        ("a = 1\na = 2\n", "line 2, column 6: not valid TOML: Cannot overwrite a value"),
    ],
)
def test_bad_toml_is_refused_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == f"c.toml: {message}"


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"a = '\xe9'")
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value) == f"{file}: not UTF-8 text, at byte 5; save it as UTF-8"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + SMALL).pair(None, {}).name == "one"


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path)
    assert str(error.value) == f"{tmp_path}: can't be read: Is a directory"


def test_a_message_stays_on_one_line_whatever_the_file_holds(tmp_path: Path) -> None:
    message = refusal(tmp_path, '"a\\nb\\u2028\\u001b" = 1')
    assert message == (
        'c.toml: "a\\nb\\u2028\\u001b" = 1: unknown key; allowed: chat, default_pair, endpoints, pairs, review, serve'
    )


KEYS = [
    "pairs",
    "endpoints",
    "default_pair",
    "target",
    "model",
    "url",
    "lookahead",
    "route",
    "options",
    "stop",
]


@given(
    st.recursive(
        st.integers() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    )
)
def test_whatever_a_file_holds_it_is_a_table_or_refused(value: object) -> None:
    for table, key in ((ConfigTable, "pairs"), (ConfigTable, "endpoints"), (PairTable, "target")):
        with contextlib.suppress(ConfigError):
            validate_table(table, {key: value}, ConfigLocation(Path("c.toml")))


WRONG = [None, True, 0, -1, 1.5, float("nan"), "", "a b", [], [None], {}, {"a": 1}]


TABLES = [
    *(table for table in vars(config_schema).values() if isinstance(table, type) and issubclass(table, Table)),
    prompts._Prompt,
    prompts._Said,
    decisions._Written,
]


def faults_of(table: type[Table]) -> Iterator[str]:
    """What each wrong value of each field gives, on an otherwise plausible table."""
    others = {name: "a" for name, info in table.model_fields.items() if info.is_required()}
    for key in table.model_fields:
        for value in WRONG:
            try:
                validate_table(table, {**others, key: value}, ConfigLocation(Path("c.toml"), ("t",)))
            except ConfigError as error:
                yield str(error)


@pytest.mark.parametrize("table", [table for table in TABLES if table.model_fields])
def test_each_fault_that_pydantic_can_find_has_words_and_names_the_key(table: type[Table]) -> None:
    faults = list(faults_of(table))
    assert len(faults) > len(table.model_fields)
    for fault in faults:
        assert re.fullmatch(r"c\.toml: t\.\w+(\.(\d+|a|model))?( = .*)?: [a-z][^{}]*", fault)


def test_a_place_for_several_types_names_them_all() -> None:
    for wrong in ([], {"a": 1}):
        with pytest.raises(ConfigError, match=r"t\.id = .*: must be a text or a whole number$"):
            validate_table(prompts._Prompt, {"id": wrong, "prompt": "a"}, ConfigLocation(Path("c.toml"), ("t",)))


# Which pair


def wrong_pair(config: Config, name: str | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        config.pair(name, environ or {})
    return str(error.value)


def test_the_default_pair_is_the_one_named_or_the_only_one(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE).pair(None, TOKEN).name == "coder"
    assert load(tmp_path, SMALL).pair(None, {}).name == "one"


def test_an_unknown_pair_names_the_nearest_and_all(tmp_path: Path) -> None:
    assert wrong_pair(load(tmp_path, WHOLE), "codr") == (
        f"{tmp_path / 'c.toml'}: there is no pair codr, did you mean coder? allowed: coder, other"
    )


def test_several_pairs_without_a_default_say_how_to_choose(tmp_path: Path) -> None:
    config = load(tmp_path, SMALL + SMALL.replace("one", "two"))
    assert wrong_pair(config, None) == (
        f'{tmp_path / "c.toml"}: there is no default pair; name one of one, two, or set default_pair = "one"'
    )


def test_without_a_pair_the_flags_and_the_places_of_the_file_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: Path("/home/me/.config") / name)
    steps = "run `specollama init`, or give --target MODEL[@SERVER] and --draft MODEL[@SERVER], or "
    write = "write a configuration file, ./specollama.toml or /home/me/.config/specollama/config.toml"
    assert wrong_pair(Config(), None) == f"no pair is given: {steps}{write}"
    assert wrong_pair(Config(), "coder") == f"there is no pair coder: {steps}{write}"
    file = tmp_path / "c.toml"
    assert wrong_pair(load(tmp_path, ""), None) == f"no pair is given: {steps}define one in {file}"


def test_a_missing_token_stops_the_pair_before_any_request(tmp_path: Path) -> None:
    assert wrong_pair(load(tmp_path, WHOLE), "coder") == (
        "the environment variable TOWER_TOKEN is not set;"
        " it has to hold the bearer token of endpoint tower, http://tower:11434"
    )


# Pairs given by flags


def test_flags_alone_make_a_pair() -> None:
    pair = adhoc_pair("q:32b@http://tower:11434", "q:0.5b", Config(), {})
    assert pair.draft is not None
    assert (pair.name, pair.target.model, pair.draft.model) == (None, "q:32b", "q:0.5b")
    assert str(pair.target.endpoint) == "http://tower:11434 (set by --target)"
    assert str(pair.draft.endpoint) == "http://127.0.0.1:11434 (set by default)"


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("tower", "http://tower:11434"),
        ("box", "http://box:11434"),
        ("localhost", "http://localhost:11434"),
        ("box:80", "http://box:80"),
        ("https://box/x", "https://box:443/x"),
    ],
)
def test_the_server_of_a_flag_is_an_endpoint_a_host_or_a_url(tmp_path: Path, server: str, url: str) -> None:
    pair = adhoc_pair(f"t@{server}", "d", load(tmp_path, WHOLE), TOKEN)
    assert pair.target.endpoint.url == url
    assert (pair.target.endpoint.token_env is not None) == (server == "tower")


def test_flags_change_a_pair_and_its_options_one_by_one(tmp_path: Path) -> None:
    pair = load(tmp_path, WHOLE).pair("coder", TOKEN)
    changed = pair.with_overrides(lookahead=0, route="plain", rule=None, options={"temperature": 1, "seed": None})
    assert (changed.lookahead, changed.route, changed.rule) == (0, Route.PLAIN, AcceptanceMethod.MATCH)
    assert changed.options == {"temperature": 1.0, "stop": ["END"]}
    assert pair.with_overrides() == pair


@pytest.mark.parametrize(
    ("target", "draft", "flags", "message"),
    [
        (
            "@box",
            "d",
            {},
            '--target = "@box": must be MODEL or MODEL@SERVER, as qwen2.5-coder:32b@http://tower:11434',
        ),
        ("t", "d@ftp://box", {}, '--draft = "d@ftp://box": the scheme must be http or https'),
        (
            "t",
            None,
            {},
            "--draft: missing; give it as --draft MODEL, or --route plain, which drafts nothing",
        ),
        (
            "t",
            "d",
            {"keep_alive": "soon"},
            '--keep-alive = "soon": must be a duration, as "30m", or a number of seconds (below 0: for ever)',
        ),
        ("t", "d", {"options": {"top_k": "many"}}, '--top-k = "many": must be a whole number'),
    ],
)
def test_a_wrong_flag_is_named(target: str, draft: str | None, flags: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        adhoc_pair(target, draft, Config(), {}, **flags)  # type: ignore[arg-type]
    assert str(error.value) == message
    assert not isinstance(error.value, ConfigError)


def test_a_target_alone_runs_plain_when_asked_to() -> None:
    assert adhoc_pair("t", None, Config(), {}, route=Route.PLAIN).draft is None


@given(st.from_regex(r"[^\s@]{1,10}", fullmatch=True), st.from_regex(r"\S{1,10}", fullmatch=True))
def test_a_model_and_its_server_come_apart_at_the_first_at_sign(model: str, server: str) -> None:
    assert parse_model_at(f"{model}@{server}") == (model, server)
    assert parse_model_at(f" {model} ") == (model, None)


# Finding the file


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / "user" / name)
    (tmp_path / "user" / "specollama").mkdir(parents=True)
    return tmp_path / "user" / "specollama" / "config.toml"


def test_the_file_is_looked_for_from_the_flag_down_to_the_users_directory(tmp_path: Path, user_file: Path) -> None:
    assert find_config(None, {}, tmp_path) is None
    user_file.touch()
    assert find_config(None, {}, tmp_path) == user_file
    (tmp_path / "specollama.toml").touch()
    assert find_config(None, {}, tmp_path) == tmp_path / "specollama.toml"
    (tmp_path / "variable.toml").touch()
    environ = {"SPECOLLAMA_CONFIG": "variable.toml"}
    assert find_config(None, environ, tmp_path) == tmp_path / "variable.toml"
    (tmp_path / "flag.toml").touch()
    assert find_config(Path("flag.toml"), environ, tmp_path) == tmp_path / "flag.toml"


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        find_config(Path("no.toml"), {}, tmp_path)
    assert str(error.value) == f"{tmp_path / 'no.toml'}: there is no such file (set by --config)"
    with pytest.raises(ConfigError) as error:
        find_config(None, {"SPECOLLAMA_CONFIG": "no.toml"}, tmp_path)
    assert str(error.value) == f"{tmp_path / 'no.toml'}: there is no such file (set by $SPECOLLAMA_CONFIG)"


def test_no_file_is_an_empty_configuration() -> None:
    assert load_config(None) == Config()


# The examples

EXAMPLES = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_loads_and_each_of_its_pairs_resolves(file: Path) -> None:
    config = load_config(file)
    assert config.pair(None, TOKEN).name == config.table.default_pair
    assert [config.pair(name, TOKEN).name for name in config.table.pairs] == list(config.table.pairs)


def test_there_is_an_example_for_each_situation() -> None:
    names = {file.stem for file in EXAMPLES}
    assert names == {"same-machine", "two-machines", "no-logprobs", "embedded", "engines", "local", "serve"}


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [("t@tower", "http://tower:11434"), ("t@box:1", "http://box:1"), ("t", "http://127.0.0.1:11434")],
)
def test_a_target_may_be_written_as_on_the_command_line(tmp_path: Path, text: str, endpoint: str) -> None:
    file = f'[endpoints.tower]\nurl = "http://tower:11434"\n[pairs.one]\ntarget = "{text}"\ndraft = "lookup"\n'
    pair = load(tmp_path, file).pair("one", {})
    assert (pair.target.model, pair.target.endpoint.url) == ("t", endpoint)


def test_a_target_written_as_text_may_be_a_file(tmp_path: Path) -> None:
    pair = load(tmp_path, '[pairs.one]\ntarget = "big.gguf"\ndraft = "lookup"\n').pair("one", {})
    assert pair.target == FileRef(tmp_path / "big.gguf")


def test_the_embedded_pair_may_be_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, 'default_pair = "embedded"\n')
    assert config.is_embedded(None)
    assert not load(tmp_path, SMALL).is_embedded(None)
