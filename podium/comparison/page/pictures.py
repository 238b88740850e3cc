"""The charts of a comparison as SVG files of their own: python -m podium.comparison.page.pictures FOLDER PATH…

They are those of the page, in their light colours on white.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.errors import PodiumError
from benchmarks.files import make_folder, write_whole
from podium.comparison.cache import RunCache, default_folder
from podium.comparison.gathering import Comparison, gather
from podium.comparison.page.charts import time_chart
from podium.comparison.page.families import families_of
from podium.comparison.page.page import accuracy_charts, throughput_charts, time_spent_charts
from podium.console import tell
from podium.page.chart import Chart, standalone_svg


def charts_by_name(comparison: Comparison) -> Mapping[str, Chart]:
    """Those that the comparison has results for."""
    families = families_of(comparison.results)
    if not families.results:
        return {}
    named = (
        (("time-to-train",), [time_chart(families)]),
        (("throughput", "throughput-of-families"), throughput_charts(families)),
        (("accuracy", "accuracy-near-target"), accuracy_charts(families)),
        (("time-spent",), time_spent_charts(families)),
    )
    return {name: chart for names, charts in named for name, chart in zip(names, charts, strict=False)}


def write_pictures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write NAME.svg for each chart, and return what was written. WorkError if a file cannot be."""
    make_folder(folder)
    written = []
    for name, chart in charts_by_name(comparison).items():
        path = folder / f"{name}.svg"
        write_whole(path, standalone_svg(chart))
        written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m podium.comparison.page.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("paths", type=Path, nargs="+", help="results, as podium compare takes them")
    given = parser.parse_args()
    try:
        for path in write_pictures(gather(given.paths, RunCache(default_folder())), given.folder):
            print(path)
    except PodiumError as error:
        tell(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
