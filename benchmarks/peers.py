"""What a user could do without logscope, one way each: ``python peers.py WAY LOG`` prints what it found as JSON.

Run by compare.py in an environment that has duckdb and polars. All ways but ``sglang`` count the debug lines by site
and label, with the mean of the printed norm: no times, no ranks, no passes, no phases, no copies told apart.
"""

from __future__ import annotations

import json
import sys

TAG = "EAGLE3_DEBUG["
# Decode lines as SGLang's own debug_utils/log_parser.py reads them: one expression with named groups over every line.
DECODE = (
    r"\[(?P<time>\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:\s+DP(?P<dp>\d+))?(?:\s+TP(?P<tp>\d+))?(?:\s+EP(?P<ep>\d+))?"
    r"(?:\s+PP(?P<pp>\d+))?\]\s+Decode batch(?: \[\d+\])?,\s+#running-req:\s*(?P<running>\d+),\s+"
    r"#token:\s*(?P<token>\d+),\s+token usage:\s*(?P<usage>[0-9.]+),\s+.*?accept len:\s*(?P<accept>[0-9.]+),.*?"
    r"gen throughput \(token/s\):\s*(?P<throughput>[0-9.]+),\s+#queue-req:\s*(?P<queue>\d+)"
)
LINES = {
    "separator": "\x01",
    "quote_char": None,
    "has_header": False,
    "new_columns": ["line"],
    "encoding": "utf8-lossy",
    "truncate_ragged_lines": True,
}


def duckdb_split(log: str) -> list[list[object]]:
    """Return site and label, count, mean norm: by splitting text."""
    import duckdb  # noqa: PLC0415

    rows = duckdb.sql(f"""
        with lines as (
            select line from read_csv('{log}', columns={{'line': 'VARCHAR'}}, delim='\x01', quote='', escape='',
                header=false, auto_detect=false, strict_mode=false, null_padding=true, ignore_errors=true,
                max_line_size=16777216)
            where contains(line, '{TAG}')
        ), parts as (
            select split_part(line, '{TAG}', 2) as said from lines
        )
        select regexp_replace(split_part(said, ':', 1), ' [0-9]+ ', ' N '), count(*),
            avg(try_cast(split_part(split_part(said, ', norm=', 2), ',', 1) as double))
        from parts group by 1 order by 1
    """).fetchall()  # noqa: S608 - a name given on the command line
    return [list(row) for row in rows]


def polars_regex(log: str) -> list[list[object]]:
    """Return the same by one regular expression, on the streaming engine."""
    import polars as pl  # noqa: PLC0415

    found = pl.col("line").str.extract_groups(r"EAGLE3_DEBUG\[(\w+)\] ([^:]+):.*?(?:, norm=([\d.]+),|$)")
    rows = (
        pl.scan_csv(log, **LINES)
        .filter(pl.col("line").str.contains(TAG, literal=True))
        .select(found.alias("found"))
        .unnest("found")
        .group_by(pl.col("1") + "] " + pl.col("2").str.replace(r" \d+ ", " N "))
        .agg(pl.len(), pl.col("3").cast(pl.Float64, strict=False).mean())
        .sort("1")
        .collect(engine="streaming")
        .rows()
    )
    return [list(row) for row in rows]


def sglang(log: str) -> list[list[object]]:
    """Return count of decode lines and mean accept len, as SGLang's own parser finds them."""
    import polars as pl  # noqa: PLC0415

    frame = (
        pl.scan_csv(log, **LINES)
        .select(pl.col("line").str.extract_groups(DECODE).alias("found"))
        .unnest("found")
        .filter(pl.col("running").is_not_null())
        .select(pl.len(), pl.col("accept").cast(pl.Float64).sum())
        .collect(engine="streaming")
    )
    return [["decode", *frame.row(0)]]


if __name__ == "__main__":
    ways = {"duckdb": duckdb_split, "polars": polars_regex, "sglang": sglang}
    print(json.dumps(ways[sys.argv[1]](sys.argv[2])))
