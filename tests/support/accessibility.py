"""axe-core in a page."""

from __future__ import annotations

from typing import Final

__all__ = ["VIOLATIONS"]

VIOLATIONS: Final = """async ([within, rules]) => {
  const options = { resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
  const { violations } = await axe.run(within ?? document, options);
  return violations.filter(one => ["serious", "critical"].includes(one.impact))
    .flatMap(one => one.nodes.map(node => `${one.id}: ${node.target} ${node.failureSummary.split("\\n")[1] ?? ""}`));
}"""
"""JavaScript that returns the serious findings, given a selector and rules, or null for the page and for all rules."""
