"""Finding Java and fetching the jars: what goes wrong is one sentence that says what to do."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lr_kafka import jars
from lr_kafka.java import find_java
from lr_wire.errors import SetupError

JARS = {"kafka-1.jar": b"the broker", "log-2.jar": b"the logger"}

# Stands in for `java -jar ivy.jar ... -retrieve <folder>/[artifact]...`: notes the call, then does what the test says.
FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025-01-01' >&2; exit 0; fi
echo "$@" >> '{calls}'
for pattern; do :; done
folder=${{pattern%/*}}
mkdir -p "$folder"
{behaviour}
"""
FETCHES = "printf 'the broker' > $folder/kafka-1.jar; printf 'the logger' > $folder/log-2.jar"


class Machine:
    """A machine with a PATH, a cache folder and a PySpark of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.calls_file = root / "calls"
        self.cache = root / "cache" / "lr"
        self.bin.mkdir()

    def install_java(self, version: str = "17.0.1", behaviour: str = FETCHES, folder: Path | None = None) -> Path:
        java = (folder or self.bin) / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(FAKE_JAVA.format(version=version, calls=self.calls_file, behaviour=behaviour))
        java.chmod(0o755)
        return java

    @property
    def fetches(self) -> int:
        return len(self.calls_file.read_text().splitlines()) if self.calls_file.exists() else 0

    @property
    def jar_folder(self) -> Path:
        return self.cache / f"kafka-{jars.KAFKA_VERSION}"

    def fill_cache(self) -> None:
        self.jar_folder.mkdir(parents=True)
        for name, content in JARS.items():
            (self.jar_folder / name).write_bytes(content)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    ivy = tmp_path / "site" / "pyspark" / "jars" / "ivy-2.5.3.jar"
    ivy.parent.mkdir(parents=True)
    ivy.touch()
    (ivy.parents[1] / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    # The fake Java needs the shell's own tools; a real Java must not be among them.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "mkdir"):
        (tools / tool).symlink_to(next(p for d in ("/bin", "/usr/bin") if (p := Path(d, tool)).exists()))
    monkeypatch.setenv("PATH", f"{machine.bin}{os.pathsep}{tools}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("JAVA_HOME", "LR_IVY_SETTINGS", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in JARS.items()}
    monkeypatch.setattr(jars, "_expected", lambda: digests)
    jars._is_whole.cache_clear()
    return machine


def test_missing_java_is_one_sentence(machine: Machine) -> None:
    with pytest.raises(SetupError, match=r"^no Java was found \(install a Java runtime 17 or newer"):
        find_java()


@pytest.mark.parametrize("version, major", [("1.8.0_392", 8), ("11.0.22", 11), ("16", 16)])
def test_old_java_is_named_with_its_version(machine: Machine, version: str, major: int) -> None:
    java = machine.install_java(version)
    with pytest.raises(SetupError, match=rf"^{java} is Java {major}, which is too old for Kafka \(install"):
        find_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_17_and_newer_is_taken_from_path(machine: Machine, version: str) -> None:
    assert machine.install_java(version) == find_java()


def test_java_that_does_not_run_is_told(machine: Machine) -> None:
    """As the placeholder of macOS: a `java` that only says that there is none."""
    machine.install_java().write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SetupError, match="does not run"):
        find_java()


def test_java_home_wins_over_path(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_java("11")
    java = machine.install_java("21", folder=machine.root / "jdk" / "bin")
    monkeypatch.setenv("JAVA_HOME", str(machine.root / "jdk"))
    assert java == find_java()


def test_stale_java_home_does_not_hide_path(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    java = machine.install_java()
    monkeypatch.setenv("JAVA_HOME", str(machine.root / "removed"))
    assert java == find_java()


def test_jars_are_fetched_once_and_announced(machine: Machine) -> None:
    machine.install_java()
    announced: list[str] = []
    assert jars.kafka_jars(announced.append) == machine.jar_folder
    assert jars.kafka_jars(announced.append) == machine.jar_folder
    assert {file.name: file.read_bytes() for file in machine.jar_folder.iterdir()} == JARS
    assert machine.fetches == 1
    assert len(announced) == 1


def test_whole_cache_needs_neither_java_nor_pyspark(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.fill_cache()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert jars.kafka_jars() == machine.jar_folder


@pytest.mark.parametrize(
    "damage",
    [lambda jar: jar.write_bytes(b"garbage"), lambda jar: jar.unlink(), lambda jar: jar.write_bytes(b"")],
    ids=["changed", "missing", "empty"],
)
def test_damaged_cache_is_fetched_again(machine: Machine, damage: Callable[[Path], object]) -> None:
    machine.install_java()
    machine.fill_cache()
    damage(machine.jar_folder / "log-2.jar")
    jars.kafka_jars()
    assert (machine.jar_folder / "log-2.jar").read_bytes() == JARS["log-2.jar"]
    assert machine.fetches == 1


def test_processes_that_fetch_at_once_fetch_once(machine: Machine) -> None:
    """The lock is on an open file, so threads stand for processes here."""
    machine.install_java(behaviour=FETCHES)
    both = threading.Barrier(2)
    folders: list[Path] = []

    def fetch() -> None:
        both.wait()
        folders.append(jars.kafka_jars())

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [machine.jar_folder] * 2
    assert machine.fetches == 1


def test_wrong_jar_is_refused_and_not_kept(machine: Machine) -> None:
    machine.install_java(behaviour=f"{FETCHES}; printf 'something else' > $folder/log-2.jar")
    with pytest.raises(SetupError, match=r"^log-2\.jar is not the file that was expected \(sha256 differs\) \(a proxy"):
        jars.kafka_jars()
    assert [file.name for file in machine.cache.iterdir()] == [f"kafka-{jars.KAFKA_VERSION}.lock"]


def test_registry_out_of_reach_is_one_sentence(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.install_java(behaviour="echo 'Server access error at url x (java.net.ConnectException: refused)'; exit 1")
    assert jars.main() == 1
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith("error: the Maven registry is out of reach (Server access error")
    assert "check the network" in sentence


def test_full_disk_is_one_sentence(machine: Machine) -> None:
    machine.install_java(behaviour="echo 'java.io.IOException: No space left on device'; exit 1")
    with pytest.raises(SetupError, match=r"^the disk is full \(free about 100 MB in "):
        jars.kafka_jars()


def test_unusable_cache_folder_is_one_sentence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = machine.root / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(SetupError, match=r"^cannot write to .* \(set XDG_CACHE_HOME to a writable folder"):
        jars.kafka_jars()


def test_missing_pyspark_is_one_sentence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install_java()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"PySpark, whose Ivy fetches them, is not installed \(run `make setup`"):
        jars.kafka_jars()


def test_proxy_and_mirror_reach_ivy(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java ignores HTTPS_PROXY by itself."""
    machine.install_java()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("LR_IVY_SETTINGS", "mirror.xml")
    jars.kafka_jars()
    call = machine.calls_file.read_text()
    assert "-Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=3128" in call
    assert "-settings mirror.xml" in call


def test_checked_in_list_names_the_broker_and_a_logger() -> None:
    """Without a logger the broker could not say why it fails."""
    names = set(jars._expected())
    assert {f"kafka_2.13-{jars.KAFKA_VERSION}.jar", "slf4j-simple-1.7.36.jar"} <= names
    assert len(names) == 46
