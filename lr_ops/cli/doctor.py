"""`lr doctor`: whether the clusters are fit for LR."""

from __future__ import annotations

from typing import Annotated

import typer

from lr_ops.cli.common import AsJson, ConfigFile, load_settings, output, print_json
from lr_ops.doctor.checks import examine
from lr_ops.doctor.look import look
from lr_ops.doctor.model import Finding, Level

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}


def doctor(
    config_file: ConfigFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """
    Check every cluster: can it be reached, its release, our rights, and settings that would break a guarantee.

    Nothing is changed. Exit code 1 if there are errors.
    """
    settings = load_settings(config_file)
    findings = examine(look(settings), settings.limits)
    shown = [finding for finding in findings if not quiet or finding.level != Level.OK]
    if as_json:
        print_json({"findings": [finding_json(finding) for finding in shown]})
    else:
        _print(shown, findings)
    if any(finding.level == Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _print(shown: list[Finding], findings: list[Finding]) -> None:
    console = output()
    for finding in shown:
        where = f"{finding.site} {finding.subject}"
        console.print(f"{finding.level:<8} {where}: {finding.text}", style=_STYLES[finding.level], markup=False)
        if finding.advice:
            console.print(f"{'':<8} -> {finding.advice}", markup=False)
    errors, warnings = (sum(finding.level == level for finding in findings) for level in (Level.ERROR, Level.WARNING))
    console.print(f"{errors} errors, {warnings} warnings.", style="bold")


def finding_json(finding: Finding) -> dict[str, str | None]:
    """Give a finding as documented in docs/commands.md."""
    return {
        "level": finding.level.value,
        "site": finding.site,
        "subject": finding.subject,
        "text": finding.text,
        "advice": finding.advice or None,
    }
