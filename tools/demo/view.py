"""The demo's output: a live view on a terminal, plain lines elsewhere."""

import shutil
import sys

_BAR = 24
_PLOT_WIDTH = 60
_PLOT_HEIGHT = 10


def _can_print(text):
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


FULL, LEFT, DOT, RULE, CORNER = ("█", "░", "•", "│", "└") if _can_print("█░•│└") else "#.*|+"
DASH = "─" if CORNER == "└" else "-"


def traffic_text(training):
    shares = training.traffic()
    if not any(share for _, share in shares):
        return "sums: none reported yet"
    return "sums: " + ", ".join(f"{name} {share:.0%}" for name, share in shares)


def _state(training):
    last = training.progress[-1]
    recent = [line["steps_per_s"] for line in training.progress[-10:]]
    rate = len(recent) / sum(1 / r for r in recent)
    return last["step"], last["loss"], rate


class LiveView:
    """Two overwritten lines: the progress, and each server's share of the sums."""

    def __init__(self):
        self._drawn = False
        self._told = 0

    def show(self, training):
        for line in training.news[self._told :]:
            sys.stdout.write("\x1b[2A\r\x1b[K" if self._drawn else "")
            print(line)
            self._drawn = False
        self._told = len(training.news)
        width = shutil.get_terminal_size().columns - 1
        if training.progress:
            step, loss, rate = _state(training)
            done = _BAR * step // training.steps
            bar = FULL * done + LEFT * (_BAR - done)
            first = f"{bar} step {step}/{training.steps}  loss {loss:.3f}  {rate:.1f} steps/s"
        else:
            first = LEFT * _BAR + " starting PyTorch on every rank ..."
        up = "\x1b[2A" if self._drawn else ""
        lines = [first, traffic_text(training)]
        sys.stdout.write(up + "".join(f"\r\x1b[K{line[:width]}\n" for line in lines))
        sys.stdout.flush()
        self._drawn = True


class PlainView:
    """A line at intervals, for logs."""

    def __init__(self):
        self._next = 0
        self._told = 0

    def show(self, training):
        if not training.progress:
            return
        for line in training.news[self._told :]:
            print(line, flush=True)
        self._told = len(training.news)
        step, loss, rate = _state(training)
        if step < self._next and step != training.steps or step < 1:
            return
        if step == training.steps and self._next > training.steps:
            return
        every = max(1, training.steps // 10)
        self._next = training.steps + 1 if step == training.steps else (step // every + 1) * every
        print(
            f"step {step}/{training.steps}  loss {loss:.3f}  {rate:.1f} steps/s  "
            f"{traffic_text(training)}",
            flush=True,
        )


def make_view():
    return LiveView() if sys.stdout.isatty() else PlainView()


def plot(losses):
    """The loss curve as lines of text."""
    columns = min(_PLOT_WIDTH, len(losses))
    means = []
    for i in range(columns):
        piece = losses[i * len(losses) // columns : (i + 1) * len(losses) // columns]
        means.append(sum(piece) / len(piece))
    top, bottom = max(means), min(means)
    scale = (_PLOT_HEIGHT - 1) / ((top - bottom) or 1)
    rows = [round((top - mean) * scale) for mean in means]
    lines = []
    for y in range(_PLOT_HEIGHT):
        label = top - y / scale if scale else top
        lines.append(f"{label:7.3f} {RULE}" + "".join(DOT if row == y else " " for row in rows))
    lines.append(" " * 8 + CORNER + DASH * columns)
    lines.append(" " * 9 + "1" + f"step {len(losses)}".rjust(columns - 1))
    return "\n".join(line.rstrip() for line in lines)
