"""Finds a Java that can run Kafka: JAVA_HOME first, then PATH."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from lr_wire.errors import SetupError

OLDEST = 17
"""Kafka 4 brokers refuse to run on anything older."""

_HINT = "install a Java runtime 17 or newer and put it on PATH, or set JAVA_HOME to it"


def find_java() -> Path:
    """The `java` to use; raises `SetupError` when there is none or it is too old."""
    home = os.environ.get("JAVA_HOME", "")
    # A stale JAVA_HOME is common and harmless as long as PATH has a Java.
    java = (shutil.which("java", path=Path(home, "bin")) if home else None) or shutil.which("java")
    if java is None:
        raise SetupError("no Java was found", hint=_HINT)
    return _checked(Path(java))


@functools.cache
def _checked(java: Path) -> Path:
    """Refuse a Java that does not start or is too old; asked once per process, since it costs a JVM start."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as exc:
        # macOS has a `java` that only says that there is none.
        raise SetupError(f"{java} does not run", hint=_HINT) from exc
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None:
        raise SetupError(f"{java} does not tell its version", hint=_HINT)
    if int(version[1]) < OLDEST:
        raise SetupError(f"{java} is Java {version[1]}, which is too old for Kafka", hint=_HINT)
    return java
