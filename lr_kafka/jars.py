"""
The Kafka jars of the embedded broker, in the user's cache folder.

They are fetched by Maven coordinate with the Ivy that ships inside PySpark, so a machine needs nothing but Python and
Java. Every jar is checked against `kafka-<version>.sha256` before it is used: what was fetched, and what lies in the
cache. A cache that is damaged is fetched again; one that is whole needs neither network nor PySpark.

    python -m lr_kafka.jars      # fetch if needed, print the folder
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from lr_kafka.java import find_java
from lr_wire.errors import SetupError

KAFKA_VERSION = "4.3.1"

# slf4j-simple is not among Kafka's dependencies; without a binding the broker logs nothing, not even why it failed.
_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="lr" module="embedded-broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""

_FETCH_TIMEOUT_S = 600
"""About 30 s on an ordinary line; twenty times that is a line that does not work."""

_AGAIN = "then run `make jars` again"


def cache_folder() -> Path:
    """Where LR keeps what it fetched: `lr/` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lr"


def kafka_jars(announce: Callable[[str], None] = lambda _: None) -> Path:
    """
    The folder with Kafka's jars, all verified; fetches them first where needed.

    `announce` is told when the fetch begins, because it takes half a minute. Processes that need the jars at the same
    time wait for the one that fetches. Raises `SetupError`.
    """
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if _is_whole(folder):
        return folder
    _is_whole.cache_clear()
    try:
        with _lock(folder.with_name(f"{folder.name}.lock")):
            # The process that held the lock before may have done the work.
            if not _is_whole(folder):
                _is_whole.cache_clear()
                announce(f"fetching the jars of Kafka {KAFKA_VERSION} into {folder} (44 MB, about half a minute)")
                _fetch_into(folder)
    except OSError as exc:
        raise _storage_error(exc, folder) from exc
    return folder


def _fetch_into(folder: Path) -> None:
    """Fetch next to `folder`, verify, and only then rename: nobody ever sees half a set of jars."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as temporary:
        fetched = Path(temporary, "jars")
        _run_ivy(Path(temporary), fetched)
        if wrong := _differing(fetched):
            raise SetupError(
                f"{wrong[0]} is not the file that was expected (sha256 differs)",
                hint=f"a proxy or mirror serves something else: reach the registry without it, {_AGAIN}",
            )
        if folder.exists():
            folder.rename(Path(temporary, "damaged"))
        fetched.rename(folder)


def _run_ivy(workspace: Path, target: Path) -> None:
    module = workspace / "ivy.xml"
    module.write_text(_MODULE)
    command = [
        str(find_java()),
        # Ivy waits without end otherwise when packets are dropped on the way.
        "-Dsun.net.client.defaultConnectTimeout=15000",
        "-Dsun.net.client.defaultReadTimeout=60000",
        *_proxy_options(),
        *("-jar", str(_ivy())),
        *_ivy_settings(),
        *("-cache", str(workspace / "cache")),
        *("-ivy", str(module)),
        *("-confs", "default"),
        # Without `bundle` scala-logging is missing: its packaging is that of an OSGi bundle.
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{target}/[artifact]-[revision].[ext]"),
    ]
    try:
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise _out_of_reach(f"no end after {_FETCH_TIMEOUT_S} s") from exc
    if result.returncode == 0:
        return
    if "No space left on device" in result.stdout:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reasons = [line.strip() for line in result.stdout.splitlines() if "Exception" in line or "error" in line]
    raise _out_of_reach(reasons[0] if reasons else f"Ivy ended with code {result.returncode}")


def _ivy() -> Path:
    """PySpark's Ivy; PySpark itself is not imported, which would take a second."""
    spark = importlib.util.find_spec("pyspark")
    jars = sorted(Path(spark.origin).parent.glob("jars/ivy-*.jar")) if spark and spark.origin else []
    if not jars:
        raise SetupError(
            "the Kafka jars are not in the cache, and PySpark, whose Ivy fetches them, is not installed",
            hint="run `make setup`, or install lr-replication[embedded]",
        )
    return jars[-1]


def _ivy_settings() -> list[str]:
    """For those who must use a mirror: an Ivy settings file of their own."""
    settings = os.environ.get("LR_IVY_SETTINGS")
    return ["-settings", settings] if settings else []


def _proxy_options() -> list[str]:
    """Java does not look at HTTPS_PROXY, which is how a machine behind a proxy says so."""
    proxy = urllib.parse.urlsplit(urllib.request.getproxies().get("https", ""))
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


@functools.cache
def _is_whole(folder: Path) -> bool:
    """Whether every jar is there and right; once per process, since it reads 44 MB."""
    return not _differing(folder)


def _differing(folder: Path) -> list[str]:
    """Names of the jars that are missing in `folder` or differ from the checked-in list."""
    return [name for name, digest in _expected().items() if _sha256(folder / name) != digest]


def _expected() -> dict[str, str]:
    lines = Path(__file__).with_name(f"kafka-{KAFKA_VERSION}.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _sha256(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        # Missing or unreadable is the same as wrong: it is fetched again.
        return None


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Hold `file` locked; the kernel lets go of it when the process dies, so a crash leaves nothing to clean up."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _out_of_reach(reason: str) -> SetupError:
    return SetupError(
        f"the Maven registry is out of reach ({reason})",
        hint="check the network; behind a proxy set HTTPS_PROXY, for a mirror set LR_IVY_SETTINGS to an Ivy settings "
        f"file, {_AGAIN}",
    )


def _storage_error(exc: OSError, folder: Path) -> SetupError:
    if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SetupError("the disk is full", hint=f"free about 100 MB in {folder.parent}, {_AGAIN}")
    return SetupError(
        f"cannot write to {folder.parent} ({exc.strerror})", hint=f"set XDG_CACHE_HOME to a writable folder, {_AGAIN}"
    )


def main() -> int:
    """Fetch the jars if needed; a failure is one sentence, not a traceback."""
    try:
        folder = kafka_jars(announce=lambda text: print(text, file=sys.stderr, flush=True))
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
