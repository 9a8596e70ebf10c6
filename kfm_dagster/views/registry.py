"""Every view, in the order in which faces list them."""

from kfm_dagster.views.alerts import ALERTS
from kfm_dagster.views.feeds import DATASETS, GAPS
from kfm_dagster.views.rejections import REJECTIONS
from kfm_dagster.views.units import FAILURES, UNITS

VIEWS = (UNITS, FAILURES, GAPS, REJECTIONS, ALERTS, DATASETS)
