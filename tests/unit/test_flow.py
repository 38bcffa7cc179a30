"""Decisions of a flow that need no cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lr_kafka.status import StatusTable
from lr_source.reader import flow as flow_module
from lr_source.reader.flow import Flow
from lr_source.reader.hooks import Hooks
from lr_source.reader.scan import ScanStep
from lr_source.reader.settings import Limits
from lr_source.reader.sharing import Feed, JoinPoint
from lr_wire.errors import BrokerError
from lr_wire.naming import SiteId

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
        pytest.param("self", False, id="own name"),
        pytest.param("before", False, id="name of the reader that it took over from"),
        pytest.param("another", True, id="name of a third one"),
    ],
)
def test_a_fenced_flow_is_lost_only_to_a_reader_that_came_after_it(
    recorded: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced by a time-out before it could write its own name, it must not take the dead one's for a new owner's."""
    flow = make_flow()
    flow._owner_before = "before"
    monkeypatch.setattr(flow_module, "read_status", lambda _: StatusTable(owners={(SOURCE, SINK): recorded}))
    assert flow._lost_to_another() == lost


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
