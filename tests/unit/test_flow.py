"""Decisions of a flow that need no cluster."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lr_kafka.status import StatusTable
from lr_source.reader.flow import Flow, _TakenOver
from lr_source.reader.hooks import Hooks
from lr_source.reader.scan import ScanStep
from lr_source.reader.settings import Limits
from lr_source.reader.sharing import Feed, JoinPoint
from lr_wire.errors import BrokerError
from lr_wire.naming import SiteId
from lr_wire.v1.control_pb2 import Ownership

SOURCE, SINK = SiteId("site-a"), SiteId("site-b")


def make_flow(shared: object = None, scan: object = None) -> Flow:
    """A flow that was not started."""
    return Flow(
        cast("Any", SimpleNamespace(cluster=SimpleNamespace(site=SOURCE))),
        cast("Any", SimpleNamespace(site=SINK)),
        (),
        Limits(),
        cast("Any", shared),
        lambda *_: cast("Any", scan),
        lambda *_: None,
        Hooks(),
        "self",
    )


@pytest.mark.parametrize(
    "recorded, lost",
    [
        pytest.param(None, False, id="nobody"),
        pytest.param(Ownership(owner="self", term=2), False, id="itself"),
        pytest.param(Ownership(owner="before", term=1), False, id="the one that it took over from"),
        pytest.param(Ownership(owner="after", term=3), True, id="one that took over from it"),
        pytest.param(Ownership(owner="rival", term=2), True, id="one that fenced it before it could write its name"),
    ],
)
def test_a_flow_is_lost_only_to_a_reader_that_came_after_it(recorded: Ownership | None, lost: bool) -> None:
    """Two readers must not chase each other, and a flow must not be left to one that is long gone."""
    flow = make_flow()
    flow._term = 2
    table = StatusTable(owners={(SOURCE, SINK): recorded} if recorded else {})
    with pytest.raises(_TakenOver, match=recorded.owner) if lost and recorded else contextlib.nullcontext():
        flow._require_ours(table)


def test_a_reader_that_starts_takes_over_from_whoever_is_there() -> None:
    """It is asked to by whoever started it, and its term is the next one."""
    flow = make_flow()
    table = StatusTable(owners={(SOURCE, SINK): Ownership(owner="before", term=7)})
    flow._require_ours(table)
    written: dict[str, bytes] = {}
    forwarder = SimpleNamespace(put_status=written.__setitem__, commit=lambda: None)
    flow._claim(cast("Any", forwarder), table)
    found = Ownership.FromString(written["owner/site-a/site-b"])
    assert (found.owner, found.term) == ("self", 8)


def test_a_chunk_that_could_not_be_handed_over_as_a_whole_is_not_committed() -> None:
    """Records of it may be in the open transaction, and their position is not: a commit would double or tear them."""
    calls: list[str] = []

    def forward(_chunk: object) -> None:
        calls.append("forward")
        raise BrokerError("the sink takes no more", retriable=True)

    point = JoinPoint({0: 100}, frozenset())
    shared = SimpleNamespace(behind=lambda _: 0, attach=lambda *_: point, detach=lambda _: None)
    scan = SimpleNamespace(
        passed={0: 0}, open_before=lambda _: frozenset(), step=lambda _: ScanStep(), close=lambda: calls.append("close")
    )
    flow = make_flow(shared, scan)
    flow._forwarder = cast("Any", SimpleNamespace(open=True, full=False))
    ledger = SimpleNamespace(
        topic_id="id", starts=lambda: {0: 0}, forward=forward, commit=lambda: calls.append("commit")
    )
    with pytest.raises(BrokerError, match="takes no more"):
        flow._join(cast("Any", ledger), Feed(SINK, 1000))
    assert calls == ["forward", "close"]
