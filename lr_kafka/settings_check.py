"""Trying out an operator's librdkafka settings without contacting anybody."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from lr_kafka.clients import FIXED_SETTINGS, Setting

# What is wrong comes back as an error; librdkafka's remarks beside it are about a client that is thrown away.
_silent = logging.getLogger("lr.settings_check")
_silent.disabled = True

# What librdkafka's message begins with when each setting is fine and only their combination is not.
_COMBINATION = "Failed to create consumer: "


def setting_problems(settings: Mapping[str, Setting]) -> dict[str, str]:
    """
    Tell what is wrong with each setting; the problem of a combination stands under the empty name.

    A consumer knows the producer's settings as well, so one kind of client is enough to try them all.
    """
    problems = {name: problem for name, value in settings.items() if (problem := _problem_of(name, value))}
    if not problems and (problem := _refusal(settings)):
        problems[""] = problem.removeprefix(_COMBINATION)
    return problems


def _problem_of(name: str, value: Setting) -> str:
    if name in FIXED_SETTINGS:
        return "LR sets this itself, since guarantees rest on it: leave it out"
    problem = _refusal({name: value})
    return "" if problem.startswith(_COMBINATION) else problem


def _refusal(settings: Mapping[str, Setting]) -> str:
    # Without brokers nothing is connected to.
    config = {name: value for name, value in settings.items() if name != "bootstrap.servers"}
    try:
        Consumer({"group.id": "LR_settings_check", **config}, logger=_silent).close()
    except KafkaException as exception:
        return str(exception.args[0].str()).strip()
    return ""
