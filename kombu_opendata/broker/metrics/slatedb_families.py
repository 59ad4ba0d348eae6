"""SlateDB's own metrics as Prometheus families.

The binding's recorder uses names like ``slatedb.db.write_ops``, which become ``slatedb_db_write_ops_total`` with
SlateDB's own labels and ``broker_instance``. SlateDB defines their meaning, which may change with its version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric as Family

from .exposition import cumulated

#: labels with new values after each startup, which a time series database would collect without end
_UNBOUNDED_LABELS = {"worker_id"}


def slate_families(metrics: Iterable[tuple[str, Any]]) -> Iterable[Family]:
    """Convert (instance, SlateDB's metric) to families. Omits empty histograms."""
    families: dict[str, Family] = {}
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for instance, metric in metrics:
        name = re.sub(r"\W", "_", metric.name)
        labels = {label.key: label.value for label in metric.labels if label.key not in _UNBOUNDED_LABELS}
        labels = {re.sub(r"\W", "_", key): value for key, value in labels.items()} | {"broker_instance": instance}
        kind = _kind(metric.value)
        family = families.get(name)
        if family is None:
            family = families[name] = Family(name, metric.description or f"SlateDB's {metric.name}.", kind)
        if family.type != kind:
            continue
        value = metric.value[0]
        if kind == "histogram":
            _add_histogram(family, labels, value)
            continue
        place = (name, tuple(sorted(labels.items())))
        sums[place] = sums.get(place, 0) + value
    for (name, pairs), value in sums.items():
        family = families[name]
        family.add_sample(name + "_total" * (family.type == "counter"), dict(pairs), value)
    return [family for family in families.values() if family.samples]


def _kind(value: Any) -> str:
    if value.is_counter():
        return "counter"
    return "histogram" if value.is_histogram() else "gauge"


def _add_histogram(family: Family, labels: dict[str, str], value: Any) -> None:
    if not value.count:
        return
    for bound, total in cumulated(value.boundaries, value.bucket_counts):
        family.add_sample(family.name + "_bucket", {**labels, "le": bound}, total)
    family.add_sample(family.name + "_count", labels, value.count)
    family.add_sample(family.name + "_sum", labels, value.sum)
