"""Draws the results of bench/optimal like the paper's Fig. 12: time against the number of CPU machines."""

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 340, 56, 48, 40


def draw(lines, mbit):
    """Returns an SVG. `lines`: the output of bench/optimal for a single number of nodes."""
    nodes, last_k = lines[0]["n"], max(line["k"] for line in lines)
    highest = 1.15 * max(value for line in lines for value in (line["t_s"], line["t_opt_s"], line["gloo_s"] or 0))

    def x(k):
        return LEFT + (WIDTH - LEFT - 20) * (k + 0.5) / (last_k + 1)

    def y(seconds):
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * seconds / highest

    def text(at_x, at_y, words, anchor="middle", more=""):
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {more}>{words}</text>'

    bar = 0.55 * (WIDTH - LEFT - 20) / (last_k + 1)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             text(WIDTH / 2, 20, f"{nodes} GPU machines, links of {mbit} Mbit/s, {lines[0]['bytes'] / 1e6:.0f} MB", more='font-size="14"')]
    for step in range(5):
        seconds = highest * step / 5
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 6, y(seconds) + 4, f"{seconds:.1f}", "end"))
    for line in lines:
        k, top = line["k"], y(line["t_s"])
        parts.append(f'<rect x="{x(k) - bar / 2:.1f}" y="{top:.1f}" width="{bar:.1f}" height="{HEIGHT - BOTTOM - top:.1f}" fill="#4878a8"/>')
        parts.append(f'<line x1="{x(k) - bar * 0.7:.1f}" x2="{x(k) + bar * 0.7:.1f}" y1="{y(line["t_opt_s"]):.1f}" '
                     f'y2="{y(line["t_opt_s"]):.1f}" stroke="black" stroke-width="2"/>')
        parts.append(text(x(k), HEIGHT - BOTTOM + 16, k))
        parts.append(text(x(k), HEIGHT - BOTTOM - 6, f"{line['slowdown']:.2f}", more='fill="white"'))
    if lines[0]["gloo_s"]:
        at = y(lines[0]["gloo_s"])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="#c04040" stroke-dasharray="6 4"/>')
        parts.append(text(WIDTH - 22, at - 5, "ring all-reduce (Gloo)", "end", 'fill="#c04040"'))
    parts.append(text(WIDTH / 2, HEIGHT - 10, "CPU machines; bars: measured (and over the optimum), black: the optimum"))
    parts.append(text(14, (HEIGHT - BOTTOM + TOP) / 2, "seconds", more=f'transform="rotate(-90 14 {(HEIGHT - BOTTOM + TOP) / 2})"'))
    return "\n".join([*parts, "</svg>\n"])
