"""Formats the storage folder of a new one-node cluster, without Kafka's shell scripts."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from lr_kafka.jars import kafka_jars
from lr_wire.errors import SetupError

# As little as the tool wants to know. Not the broker's own settings: a mistake in those is the broker's to report.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
"""


def format_storage(data: Path, java: Sequence[str]) -> None:
    """
    Make `data` the storage folder of a new cluster; `java` is the command to run a class of Kafka's with.

    Kafka's own tool costs a JVM (0.8 s). Of the two files it writes, `bootstrap.checkpoint` (the feature levels of a
    new cluster) is the same for every cluster of a version: it is made once and kept beside the jars.
    """
    template = kafka_jars() / "bootstrap.checkpoint"
    if not template.exists():
        with tempfile.TemporaryDirectory(dir=template.parent.parent) as temporary:
            once = Path(temporary, "once.properties")
            once.write_text(f"{_SETTINGS}log.dirs={temporary}/data\n")
            tool = [*java, "kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(once)]
            result = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if result.returncode:
                reason = (result.stdout.splitlines() or ["it said nothing"])[-1]
                raise SetupError(f"Kafka's storage tool failed: {reason}", hint="look for free disk space and memory")
            Path(temporary, "data", template.name).rename(template)
    shutil.copyfile(template, data / template.name)
    # Last, because its presence means formatted.
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={random_id()}\nnode.id=1\ndirectory.id={random_id()}\n"
    )


def random_id() -> str:
    """A random id as Kafka writes them: 128 bits in URL-safe base64; its tools refuse a leading dash."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return f"A{text[1:]}" if text.startswith("-") else text
