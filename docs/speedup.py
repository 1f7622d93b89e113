#!/usr/bin/python3
"""Draws docs/speedup.svg from the tables of measured rounds in docs/performance.md.

    docs/speedup.py            writes the drawing
    docs/speedup.py --print    prints it

Each panel is a number n of GPU machines. A bar is the measured speed-up over Gloo's ring on the same links: the plan's
speed-up over a ring, (n^2 + k n - 2 k) / n^2, times the row "lead over Gloo's ring / the plan's". The black mark is the
plan's speed-up, the upper limit. tests/tidy/test_docs.py compares the file with the output.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEIGHT, TOP, BOTTOM, LEFT, SLOT, GAP = 300, 58, 56, 56, 46, 40
HIGHEST = 2.0


def measured(text):
    """{n: [(k, ratio of the measured lead to the plan's)]}, from the tables of performance.md."""
    tables = {}
    for n, header, rows in re.findall(r"^\| n = (\d+), k \|([^\n]*)\n((?:\|[^\n]*\n)+)", text, re.M):
        counts = [int(cell) for cell in header.strip("| ").split("|")]
        row = re.search(r"^\| lead over Gloo's ring / the plan's \|([^\n]*)$", rows, re.M)[1]
        tables[int(n)] = list(zip(counts, map(float, row.strip("| ").split("|"))))
    return tables


def planned(n, k):
    return (n * n + k * n - 2 * k) / (n * n)


def y(speedup):
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * speedup / HIGHEST


def text(x, at, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="{anchor}" {more}>{words}</text>'


def panel(left, n, points):
    right = left + SLOT * len(points)
    parts = [text((left + right) / 2, TOP - 10, f"{n} GPU machines", more='font-weight="bold"')]
    for step in (0, 0.5, 1, 1.5, 2):
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(step):.1f}" y2="{y(step):.1f}" stroke="{"#c04040" if step == 1 else "#dddddd"}"/>')
        parts.append(text(left - 6, y(step) + 4, f"{step:.1f}", "end"))
    for slot, (k, ratio) in enumerate(points):
        middle, best = left + SLOT * (slot + 0.5), planned(n, k)
        speedup = ratio * best
        parts.append(f'<rect x="{middle - 15:.1f}" y="{y(speedup):.1f}" width="30" height="{y(0) - y(speedup):.1f}" fill="#4878a8"/>')
        parts.append(f'<line x1="{middle - 19:.1f}" x2="{middle + 19:.1f}" y1="{y(best):.1f}" y2="{y(best):.1f}" stroke="black" stroke-width="2"/>')
        parts.append(text(middle, y(0) - 8, f"{speedup:.2f}", more='fill="white"'))
        parts.append(text(middle, y(0) + 16, k))
    parts.append(text((left + right) / 2, y(0) + 32, "borrowed CPU machines"))
    return parts, right


def draw(tables):
    parts, left = [], LEFT
    for n, points in sorted(tables.items()):
        drawn, right = panel(left, n, points)
        parts += drawn
        left = right + GAP
    width = left - GAP + 16
    title = "Speed-up over Gloo's ring all-reduce, 64 MB, links of 400 Mbit/s"
    legend = "bars: measured; black: the optimum (Theorem 1); red: the ring"
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f"<title>{title}</title>", f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
            text(width / 2, 22, title, more='font-size="14"'), text(width / 2, HEIGHT - 6, legend)]
    return "\n".join([*head, *parts, "</svg>\n"])


if __name__ == "__main__":
    drawing = draw(measured((HERE / "performance.md").read_text()))
    if sys.argv[1:] == ["--print"]:
        print(drawing, end="")
    else:
        (HERE / "speedup.svg").write_text(drawing)
