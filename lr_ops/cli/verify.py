"""`lr verify`: audit a source's log against its sinks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lr_ops.cli.common import AsJson, Bars, ConfigFile, bars, load_settings, new_table, output, print_json
from lr_ops.verify.model import Finding, PartitionReport
from lr_ops.verify.run import NotAudited, VerifyReport
from lr_ops.verify.run import verify as run_audit
from lr_ops.verify.wait import wait_until_caught_up
from lr_source.reader.settings import ReaderSettings

_COLUMNS = (
    ("session", "partition", "forwarded", "applied", "waiting", "pending", "compared", "totals", "findings"),
    ("partition", "forwarded", "applied", "waiting", "pending", "compared", "findings"),
)
# More of the same kind in the same partition tells a person nothing new; `--json` has them all.
_SHOWN_PER_KIND = 10


def verify(
    config_file: ConfigFile = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Wait up to this many seconds until all that is in the log now is forwarded.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """
    Audit the source's log against every sink.

    Each entry must be at exactly its destinations, once, whole, in order and unchanged. Exit code 0: it is so; 1: it is
    not; 2: something could not be audited.
    """
    settings = load_settings(config_file)
    with bars() as shown:
        late = _wait(settings, wait, shown) if wait else []
        report = run_audit(settings, shown.reading)
    report.not_audited = [*late, *report.not_audited]
    if as_json:
        print_json(report_json(report))
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _wait(settings: ReaderSettings, wait_s: float, shown: Bars) -> list[NotAudited]:
    with shown.waiting() as show:
        late = wait_until_caught_up(settings, wait_s, show)
    return [NotAudited(str(session), f"had not caught up after {wait_s:g} s") for session in late]


def report_json(report: VerifyReport) -> dict[str, Any]:
    """Give the report as documented in docs/commands.md."""
    return {
        "source": report.source,
        "clean": report.exit_code == 0,
        "partitions": [_partition_json(one) for one in report.partitions],
        "findings": [_finding_json(one) for one in report.findings],
        "not_audited": [{"what": one.what, "reason": one.reason} for one in report.not_audited],
    }


def _partition_json(one: PartitionReport) -> dict[str, Any]:
    return {
        "sink": one.session.sink,
        "client": one.session.client,
        "partition": one.partition,
        "forwarded": one.forwarded,
        "applied": one.applied,
        "waiting": one.waiting,
        "pending": one.pending,
        "compared": one.compared,
        "totals": one.totals.value,
        "findings": len(one.findings),
    }


def _finding_json(one: Finding) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "sink": one.session.sink,
        "client": one.session.client,
        "partition": one.partition,
        "txn": str(one.txn) if one.txn else None,
        "offset": one.offset,
        "detail": one.detail,
    }


def _print(report: VerifyReport) -> None:
    console = output()
    if report.partitions:
        columns, numbers = _COLUMNS
        table = new_table(*columns, numbers=numbers)
        for one in report.partitions:
            counts = (one.forwarded, one.applied, one.waiting, one.pending, one.compared)
            style = "red" if one.findings else ""
            table.add_row(
                str(one.session),
                str(one.partition),
                *map(str, counts),
                one.totals.value,
                str(len(one.findings)) if one.findings else "none",
                style=style,
            )
        console.print(table)
    for line in _finding_lines(report):
        console.print(line, style="red", markup=False)
    for gap in report.not_audited:
        console.print(f"not audited: {gap.what}: {gap.reason}", style="yellow", markup=False)
    console.print(_summary(report), style="bold", markup=False)


def _finding_lines(report: VerifyReport) -> list[str]:
    lines = []
    for one in report.partitions:
        shown: dict[str, int] = {}
        for finding in one.findings:
            shown[finding.kind] = shown.get(finding.kind, 0) + 1
            if shown[finding.kind] <= _SHOWN_PER_KIND:
                txn = f" transaction {finding.txn}" if finding.txn else ""
                at = f" at offset {finding.offset} of the receive queue" if finding.offset is not None else ""
                lines.append(f"{finding.kind}: {one.session} partition {one.partition}{txn}{at}: {finding.detail}")
        for kind, count in shown.items():
            if count > _SHOWN_PER_KIND:
                more = count - _SHOWN_PER_KIND
                lines.append(f"{kind}: {one.session} partition {one.partition}: {more} more, see --json")
    return lines


def _summary(report: VerifyReport) -> str:
    if report.findings:
        kinds = sorted({finding.kind.value for finding in report.findings})
        return f"{len(report.findings)} findings: {', '.join(kinds)}."
    forwarded = sum(one.forwarded for one in report.partitions)
    applied = sum(one.applied for one in report.partitions)
    pending = sum(one.pending for one in report.partitions)
    counts = f"{forwarded} transactions forwarded, {applied} applied, {pending} still to be forwarded"
    if report.not_audited:
        return f"Nothing wrong in what could be audited ({counts}), but not everything could be."
    return f"Every committed entry is at exactly its destinations, once, whole and in order ({counts})."
