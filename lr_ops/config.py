"""
A reader's configuration: YAML and environment variables in, `ReaderSettings` out.

Every problem is reported with file, line and reason, all of them together. `${NAME}` in a value is replaced from the
environment, so that secrets stay out of files; what came from there never shows in a message.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from lr_kafka.clients import Cluster, Setting
from lr_kafka.settings_check import setting_problems
from lr_source.reader.settings import Limits, ReaderSettings
from lr_wire.errors import ConfigError
from lr_wire.naming import ClientName, SiteId, client_name, site_id

ENVIRONMENT_VARIABLE = "LR_CONFIG"
"""Where the commands look for the file's name when `--config` is not given."""

_TOP_LEVEL = ("source", "sites", "clients", "limits")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_STR, _BOOL, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "null"))
# A mapping that is merged into itself would be followed for ever.
_DEEPEST_MERGE = ".<<" * 8
_MERGE = "tag:yaml.org,2002:merge"

_Name = TypeVar("_Name", SiteId, ClientName)


def load(path: Path, environment: Mapping[str, str] = os.environ) -> ReaderSettings:
    """Read and check a configuration file; raise ConfigError with everything that is wrong in it."""
    return parse(read_text(path), path.name, environment)


def read_text(path: Path) -> str:
    """Read a configuration file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {error.strerror}", hint="docs/reader.yaml is a sample"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text ({error.reason}, byte {error.start})") from error


def parse(text: str, name: str, environment: Mapping[str, str] = os.environ) -> ReaderSettings:
    """Check the text of a configuration; `name` is what problems call the file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {error}") from error
    if root is None:
        raise ConfigError(f"{name}: the file is empty", hint="docs/reader.yaml is a sample")
    settings, problems = _Document(environment).settings(root)
    if settings is None:
        lines = [f"{name}:{line}: {reason}" for line, reason in sorted(problems)]
        raise ConfigError(lines[0] if len(lines) == 1 else "\n".join([f"{name} has {len(lines)} problems", *lines]))
    return settings


class _Document:
    """One pass over the nodes of a file: values out, problems noted with their line."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._problems: list[tuple[int, str]] = []

    def settings(self, root: yaml.Node) -> tuple[ReaderSettings | None, list[tuple[int, str]]]:
        """Give the settings, or None and what is wrong."""
        top = self._mapping(root, "the file")
        for key, (key_node, _) in top.items():
            if key not in _TOP_LEVEL:
                self._problem(key_node, f"unknown key {key!r}; known are {', '.join(_TOP_LEVEL)}")
        source = None
        if "source" in top:
            source = self._name(top["source"][1], "source", site_id)
        else:
            self._problem(root, "`source` is missing: the site that this reader reads")
        sites = self._sites(top["sites"][1]) if "sites" in top else {}
        if "sites" not in top:
            self._problem(root, "`sites` is missing: every site with its bootstrap.servers")
        clients = self._clients(top["clients"][1]) if "clients" in top else ()
        limits = self._limits(top["limits"][1]) if "limits" in top else Limits()
        if source is None or self._problems:
            return None, self._problems
        try:
            return ReaderSettings(source, sites, clients, limits), []
        except ConfigError as error:
            self._problem(top["source"][1], str(error))
            return None, self._problems

    def _sites(self, node: yaml.Node) -> dict[SiteId, Cluster]:
        sites: dict[SiteId, Cluster] = {}
        for name, (key_node, value_node) in self._mapping(node, "sites").items():
            try:
                site = site_id(name)
            except ConfigError as error:
                self._problem(key_node, f"sites: {error}")
                continue
            settings, lines = self._librdkafka(value_node, f"sites.{site}")
            if "bootstrap.servers" not in lines:
                self._problem(key_node, f"sites.{site} has no bootstrap.servers; give it host:port[,host:port]")
            if len(settings) < len(lines):
                continue
            for setting, reason in setting_problems(settings).items():
                where = lines.get(setting, key_node.start_mark.line + 1)
                path = f"sites.{site}.{setting}" if setting else f"sites.{site}"
                self._problems.append((where, f"{path}: {_without_secrets(reason, settings)}"))
            if settings.get("bootstrap.servers"):
                sites[site] = Cluster(site, settings)
            elif "bootstrap.servers" in lines:
                self._problem(key_node, f"sites.{site}.bootstrap.servers is empty; give it host:port[,host:port]")
        return sites

    def _librdkafka(self, node: yaml.Node, path: str) -> tuple[dict[str, Setting], dict[str, int]]:
        """
        Give a site's settings and the line of each.

        Numbers stay the text that they are in the file: librdkafka parses text, and YAML's idea of a number would
        change a password such as 0123. Only a truth value is translated, since `yes` is nothing to librdkafka.
        """
        settings: dict[str, Setting] = {}
        lines: dict[str, int] = {}
        for name, (key_node, value_node) in self._mapping(node, path).items():
            lines[name] = key_node.start_mark.line + 1
            text = self._scalar(value_node, f"{path}.{name}")
            if text is not None:
                settings[name] = _is_true(value_node) if value_node.tag == _BOOL else text
        return settings, lines

    def _clients(self, node: yaml.Node) -> tuple[ClientName, ...]:
        if not isinstance(node, yaml.SequenceNode):
            self._problem(node, f"clients is {_kind(node)}; it must be a list of names such as [policy, inventory]")
            return ()
        names = [self._name(item, "clients", client_name) for item in node.value]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def _limits(self, node: yaml.Node) -> Limits:
        types = {field.name: str(field.type) for field in dataclasses.fields(Limits)}
        values: dict[str, float] = {}
        for name, (key_node, value_node) in self._mapping(node, "limits").items():
            if name not in types:
                self._problem(key_node, f"unknown limit {name!r}; known are {', '.join(types)}")
                continue
            value = self._number(value_node, f"limits.{name}", whole=types[name] == "int")
            if value is not None:
                values[name] = value
        try:
            return Limits(**values)  # type: ignore[arg-type]  # whole numbers are ints, see _number
        except ConfigError as error:
            self._problem(node, str(error))
            return Limits()

    def _number(self, node: yaml.Node, path: str, *, whole: bool) -> float | None:
        text = self._scalar(node, path)
        if text is None:
            return None
        try:
            value = int(text.replace("_", "")) if whole else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or node.tag == _BOOL:
            self._problem(node, f"{path} must be a {'whole ' if whole else ''}number")
            return None
        if value <= 0:
            self._problem(node, f"{path} is {text}; it must be greater than 0")
            return None
        return value

    def _name(self, node: yaml.Node, path: str, check: Callable[[str], _Name]) -> _Name | None:
        text = self._scalar(node, path)
        if text is None:
            return None
        try:
            return check(text)
        except ConfigError as error:
            self._problem(node, f"{path}: {error}")
            return None

    def _scalar(self, node: yaml.Node, path: str) -> str | None:
        """Give the text of a value with the environment's values filled in; None (and a problem) if it has none."""
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            self._problem(node, f"{path} is {_kind(node)}; it must be a single value")
            return None
        missing: list[str] = []

        def replacement(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            if match[1] is None:
                missing.append(f"{path} has a '${{' that is not ${{NAME}}; write '$${{' for the characters themselves")
                return ""
            if match[1] not in self._environment:
                missing.append(f"{path} needs the environment variable {match[1]}, which is not set")
            return self._environment.get(match[1], "")

        text = _VARIABLE.sub(replacement, str(node.value))
        for reason in missing:
            self._problem(node, reason)
        return None if missing else text

    def _mapping(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Give the keys and values of a mapping, with what is merged into it (`<<: *other`)."""
        if not isinstance(node, yaml.MappingNode):
            self._problem(node, f"{path} is {_kind(node)}; it must be a mapping (name: value)")
            return {}
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if path.endswith(_DEEPEST_MERGE):
                        self._problem(key, f"{path} merges mappings into each other without end")
                        return own
                    merged = self._mapping(other, f"{path}.<<") | merged
            elif not isinstance(key, yaml.ScalarNode):
                self._problem(key, f"{path} has a key that is {_kind(key)}")
            elif key.value in own:
                self._problem(key, f"{path} has {key.value!r} twice")
            else:
                own[key.value] = (key, value)
        return merged | own

    def _problem(self, node: yaml.Node, reason: str) -> None:
        self._problems.append((node.start_mark.line + 1, reason))


def _is_true(node: yaml.Node) -> bool:
    return str(node.value).lower() in ("true", "yes", "on")


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "empty" if node.tag == _NULL else "a single value"


def _without_secrets(reason: str, settings: Mapping[str, Setting]) -> str:
    """Mask the values of secret settings, should librdkafka have put one into its message."""
    shown = Cluster(SiteId("-"), {**settings, "bootstrap.servers": "-"}).shown_settings()
    for name, value in settings.items():
        if shown.get(name) == "***" and str(value):
            reason = reason.replace(str(value), "***")
    return reason
