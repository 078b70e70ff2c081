"""What a served model says of itself: names, details, capabilities, and the replies of show, tags and ps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, LlamaFileType

from specollama.backends.llama_cpp.gguf_metadata import GgufHeader, TensorInfo, read_header
from specollama.backends.ollama.schema import ListedModel, ModelDetails, RunningModel, ShowReply

FOREVER = "2318-01-01T00:00:00Z"
"""When a model that stays loaded expires: as far off as Ollama's own `keep_alive` -1."""

_LIBRARY = "registry.ollama.ai/library/"
_TEMPLATE = "tokenizer.chat_template"
_NOT_SHOWN = ("general.name", _TEMPLATE)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model's file and its Modelfile `parameters`, which hold where a request gives no option."""

    name: str
    path: Path
    header: GgufHeader
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, path: Path, parameters: Mapping[str, Any] | None = None) -> ModelCard:
        """`UsageError` if `path` is not a GGUF file."""
        return cls(short_name(name), path, read_header(path), parameters or {})

    @property
    def tagged_name(self) -> str:
        """The name as Ollama lists it, its tag included."""
        return with_tag(self.name)

    @property
    def full_name(self) -> str:
        """The name as Ollama puts it into complaints about capabilities."""
        return _LIBRARY + self.tagged_name

    @property
    def template(self) -> str:
        return str(self.header.fields.get(_TEMPLATE, ""))

    @property
    def adds_bos(self) -> bool:
        fields = self.header.fields
        forced = fields.get("tokenizer.ggml.pre") in ("lfm2", "gemma4")
        return forced or bool(fields.get("tokenizer.ggml.add_bos_token", False))

    @property
    def capabilities(self) -> list[str]:
        """Found in the template, by the words that Ollama looks for."""
        found = []
        if "tools" in self.template or "tool_call" in self.template:
            found.append("tools")
        if "<think>" in self.template and "</think>" in self.template:
            found.append("thinking")
        return [*found, "completion"]

    @property
    def modified_at(self) -> str:
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")

    def details(self) -> ModelDetails:
        family = self.header.architecture
        return ModelDetails(
            format="gguf",
            family=family,
            families=[family],
            parameter_size=human_number(self.header.parameter_count),
            quantization_level=_file_type(self.header.fields.get("general.file_type")),
        )


def short_name(name: str) -> str:
    """A model's name without what goes without saying: the library, and the tag `latest`; case doesn't count."""
    return name.lower().removeprefix(_LIBRARY).removeprefix("library/").removesuffix(":latest")


def with_tag(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def human_number(count: int) -> str:
    """134515008 -> "134.52M": the form of `parameter_size`."""
    for unit, letter, places in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{0 if count % unit == 0 else places}f}{letter}"
    return str(count)


def show_response(card: ModelCard, *, verbose: bool) -> dict[str, Any]:
    """The body of /api/show; arrays are null unless `verbose`."""
    body = ShowReply(
        modelfile=_modelfile(card),
        parameters="\n".join(f"{name:30} {value}" for name, value in _parameters(card)) or None,
        template=card.template,
        details=card.details(),
        model_info=_model_info(card.header, verbose=verbose),
        capabilities=card.capabilities,
        modified_at=card.modified_at,
    ).body()
    return {**body, "tensors": [_tensor(tensor) for tensor in card.header.tensors]}


def tags_entry(card: ModelCard) -> ListedModel:
    return ListedModel(
        name=card.tagged_name,
        model=card.tagged_name,
        modified_at=card.modified_at,
        size=card.header.size,
        digest=card.header.digest,
        details=card.details(),
        capabilities=card.capabilities,
    )


def ps_entry(card: ModelCard, num_ctx: int) -> RunningModel:
    return RunningModel(
        name=card.tagged_name,
        model=card.tagged_name,
        size=card.header.size,
        digest=card.header.digest,
        details=card.details(),
        expires_at=FOREVER,
        context_length=num_ctx,
    )


def _model_info(header: GgufHeader, *, verbose: bool) -> dict[str, Any]:
    info = {name: value for name, value in header.fields.items() if name not in _NOT_SHOWN}
    if not verbose:
        info = {name: None if isinstance(value, list) else value for name, value in info.items()}
    return {**info, "general.parameter_count": header.parameter_count}


def _parameters(card: ModelCard) -> list[tuple[str, str]]:
    """One pair a line of the Modelfile: a list gives a line for each of its items, texts are quoted."""
    pairs = []
    for name, value in card.parameters.items():
        for item in value if isinstance(value, list) else [value]:
            pairs.append((name, _quoted(item) if isinstance(item, str) else str(item)))
    return pairs


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _modelfile(card: ModelCard) -> str:
    lines = ['# Modelfile generated by "ollama show"', f"FROM {card.path}"]
    if card.template:
        lines.append(f'TEMPLATE """{card.template}"""')
    lines += [f"PARAMETER {name} {value}" for name, value in _parameters(card)]
    return "\n".join(lines) + "\n"


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": GGMLQuantizationType(tensor.kind).name,
        "shape": list(tensor.shape),
    }


def _file_type(number: int | None) -> str:
    if number is None:
        return "unknown"
    try:
        return str(LlamaFileType(number).name).removeprefix("ALL_").removeprefix("MOSTLY_")
    except ValueError:  # newer than the gguf package
        return "unknown"
