"""The registry of model families: for each `model_type`, the reader of its `config.json` and the class of its models.

Each folder of `families/` has them in its `config`, as `FAMILIES`; other packages add theirs with
`infer_models.register_family`. Both are imported when they are first asked for. A class of models imports torch, so a
family of this package names its class by a path: reading a configuration imports no torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from infer_models.family_modules import family_modules

if TYPE_CHECKING:
    from infer_models.config.json_fields import JsonFields
    from infer_models.config.model_config import ModelConfig

PLUGINS = "infer_models.families"
"""The group of entry points whose modules call `register_family`; they are loaded when a `model_type` is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models.

    Attributes:
        read: reads the fields of a `config.json`.
        build: makes a model of a `ModelConfig` and a `ParameterFactory`; or the path of such a class, `module:name`.
        defaults: fields that a `config.json` may leave out, and their values. Fields for which `read` has a default are
            not among them.
        wrappers: `model_type` of multimodal models whose text model is of this family where the file names none.
    """

    read: "Callable[[JsonFields], ModelConfig]"
    build: Callable[..., Any] | str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    wrappers: tuple[str, ...] = ()

    @property
    def builder(self) -> Callable[..., Any]:
        """`build`, imported if it is a path."""
        if isinstance(self.build, str):
            found: Callable[..., Any] = resolve_name(self.build)
            return found
        return self.build


def default_sizes(
    vocab: int, hidden: int, intermediate: int | None, layers: int, heads: int, kv_heads: int | None, positions: int
) -> Mapping[str, Any]:
    """Return the fields that say how large a model is; those that are None are not among them."""
    fields = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
    }
    return MappingProxyType({name: value for name, value in fields.items() if value is not None})


REGISTERED: dict[str, Family] = {}
"""The families that other packages have registered in this process, by `model_type`."""


def known_families() -> Mapping[str, Family]:
    """Return the families that this process knows, by `model_type`, those of this package first."""
    own = {name: family for declared in _declared() for name, family in declared.items()}
    return MappingProxyType({**own, **REGISTERED})


def find_family(model_type: str) -> Family | None:
    """Return the family of a `model_type`, if need be after loading the plug-ins; None: there is none."""
    if _find_known(model_type) is None:
        for plugin in entry_points(group=PLUGINS):
            plugin.load()
    return _find_known(model_type)


def _declared(model_type: str = "") -> Iterator[Mapping[str, Family]]:
    """Yield what each folder declares, those first that are likely to declare `model_type`."""
    return (module.FAMILIES for module in family_modules("config", like=model_type))


def _find_known(model_type: str) -> Family | None:
    if model_type in REGISTERED:
        return REGISTERED[model_type]
    return next((declared[model_type] for declared in _declared(model_type) if model_type in declared), None)


def add_family(model_type: str, family: Family) -> None:
    """Add a family of another package.

    Raises:
        ValueError: there is a family of this `model_type`.
    """
    if _find_known(model_type) is not None:
        raise ValueError(f"`model_type` is {model_type!r}, of which there is a family already.")
    REGISTERED[model_type] = family
