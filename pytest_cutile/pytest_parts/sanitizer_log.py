"""What NVIDIA's compute-sanitizer found, read from its log.

Format and tools: "Compute Sanitizer User Manual", https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer
(read as of 2026.4). Each line begins with a prefix of equals signs; what is found is a line of its own,
followed by indented ones that say where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_cutile.words.quantities import counted

_PREFIX = re.compile(r"^=========(?: (.*))?$")
_SUMMARY = re.compile(r"^ERROR SUMMARY: (\d+) errors?$")
_HAZARDS = re.compile(r"^RACECHECK SUMMARY: .*\((\d+) errors?, \d+ warnings?\)")
_NO_FINDING = re.compile(r"^(COMPUTE-SANITIZER|.*SUMMARY: .*|Warning: .*|Target application .*|Tracking .*)$")
_PLACE = re.compile(r"\+?0x[0-9a-f]+|thread \(\S+\)|block \(\S+\)")
_SHOWN, _SHOWN_LINES = 3, 6


@dataclass(frozen=True, kw_only=True)
class SanitizerLog:
    """What one run of one tool has found."""

    errors: int | None
    """How many errors it counted; None when it did not get so far as to count."""
    findings: tuple[str, ...]
    """What it said of each, that is the same apart from thread and address once."""
    text: str
    """The whole log."""

    @property
    def is_clean(self) -> bool:
        """Whether it came to its end and found nothing."""
        return self.errors == 0

    def describe(self, tool: str) -> str:
        if self.errors is None:
            last = "\n".join(f"  {line}" for line in self.text.strip().splitlines()[-_SHOWN_LINES:])
            return f"compute-sanitizer ({tool}) did not come to its end:\n{last or '  it said nothing'}"
        lines = [f"compute-sanitizer ({tool}) found {counted(self.errors, 'error')}:"]
        for finding in self.findings[:_SHOWN]:
            lines += [f"  {line}" for line in finding.splitlines()[:_SHOWN_LINES]]
        if len(self.findings) > _SHOWN:
            lines.append(f"  and {len(self.findings) - _SHOWN} more kinds or places")
        return "\n".join(lines)


def read_log(text: str) -> SanitizerLog:
    errors: int | None = None
    blocks: list[list[str]] = []
    for raw in text.splitlines():
        match = _PREFIX.match(raw.rstrip())
        if match is None:
            continue
        line = match[1] or ""
        if (summary := _SUMMARY.match(line) or _HAZARDS.match(line)) is not None:
            errors = max(errors or 0, int(summary[1]))
        if line.startswith((" ", "and ")) and blocks:
            blocks[-1].append(f"  {line.strip()}")
        else:
            blocks.append([line])  # an empty one ends what was before
    findings: dict[str, str] = {}
    for block in blocks:
        if block[0] and not _NO_FINDING.match(block[0]):
            whole = "\n".join(block)
            findings.setdefault(_PLACE.sub("", "\n".join(block[:2])), whole)
    return SanitizerLog(errors=errors, findings=tuple(findings.values()), text=text)
