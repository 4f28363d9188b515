"""Run commands on a pseudo-terminal and draw what was on it: the pictures of the documents are of real runs.

    python tools/terminal_svg.py docs/images/first-run.svg --while 0.5 'rota run --array 1-40 -- sleep 0.2'

Each command is typed after a prompt. With `--while S` the screen is also drawn as it was S seconds into the first
command, above the last one: a progress bar is gone when a run is over. Standard library only; understands as much of a
terminal as rota and rich use.
"""

import argparse
import fcntl
import html
import os
import pty
import re
import select
import struct
import sys
import termios
import time

COLUMNS = 96
CELL_W, CELL_H, PAD = 8.4, 18, 14
BACKGROUND, FOREGROUND, DIM = "#14191f", "#d8dee6", "#7d8794"
BASE = ("#3b4252", "#f0716c", "#8fce6d", "#e6c069", "#6fa8f5", "#d08be0", "#5cc8c8", "#d8dee6")
FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b.")

Cell = tuple[str, str, bool]
"""A character, its colour, and whether it is bold."""


class Screen:
    """Lines of cells, and a cursor; no scrolling."""

    def __init__(self) -> None:
        self.lines: list[list[Cell]] = [[]]
        self.row = self.column = 0
        self.colour, self.bold = FOREGROUND, False

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        at = 0
        while at < len(text):
            match = _SEQUENCE.match(text, at)
            if match:
                self._control(match[1] or "", match[2] or "")
                at = match.end()
                continue
            self._put(text[at])
            at += 1

    def copy(self) -> list[list[Cell]]:
        """The lines as they are, without empty ones at the end."""
        lines = [list(line) for line in self.lines]
        while lines and not "".join(cell[0] for cell in lines[-1]).strip():
            lines.pop()
        return lines

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
        elif char >= " ":
            if self.column >= COLUMNS:
                self.row, self.column = self.row + 1, 0
            line = self._line()
            line.extend([(" ", FOREGROUND, False)] * (self.column + 1 - len(line)))
            line[self.column] = (char, self.colour, self.bold)
            self.column += 1
        self._line()

    def _line(self) -> list[Cell]:
        while len(self.lines) <= self.row:
            self.lines.append([])
        return self.lines[self.row]

    def _control(self, arguments: str, letter: str) -> None:
        numbers = [int(word) if word.isdigit() else 0 for word in arguments.split(";")]
        if letter == "A":
            self.row = max(0, self.row - max(1, numbers[0]))
        elif letter == "G":
            self.column = max(0, numbers[0] - 1)
        elif letter == "K":
            line = self._line()
            line[:] = [] if numbers[0] == 2 else line[: self.column]
        elif letter == "m":
            self._style(numbers)

    def _style(self, numbers: list[int]) -> None:
        while numbers:
            code = numbers.pop(0)
            if code == 0:
                self.colour, self.bold = FOREGROUND, False
            elif code == 1:
                self.bold = True
            elif code == 2:
                self.colour = DIM
            elif 30 <= code <= 37:
                self.colour = BASE[code - 30]
            elif 90 <= code <= 97:
                self.colour = BASE[code - 90]
            elif code == 39:
                self.colour = FOREGROUND
            elif code == 38 and numbers[:1] == [5]:
                self.colour = palette(numbers[1])
                del numbers[:2]
            elif code == 38 and numbers[:1] == [2]:
                self.colour = "#{:02x}{:02x}{:02x}".format(*numbers[1:4])
                del numbers[:4]


def palette(number: int) -> str:
    """A colour of the 256."""
    if number < 16:
        return BASE[number % 8]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    steps = (0, 95, 135, 175, 215, 255)
    number -= 16
    return f"#{steps[number // 36]:02x}{steps[number // 6 % 6]:02x}{steps[number % 6]:02x}"


def play(command: str, screen: Screen, look_at_s: float | None) -> list[list[Cell]] | None:
    """Run a command on a terminal of its own; returns the screen as it was at the time asked for."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES="40")
        os.environ.pop("COLORTERM", None)
        os.environ.pop("NO_COLOR", None)
        os.execvp("bash", ["bash", "-c", command])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    began = time.monotonic()
    seen = None
    rest = b""
    while True:
        if look_at_s is not None and seen is None and time.monotonic() - began >= look_at_s:
            seen = screen.copy()
        if not select.select([fd], [], [], 0.05)[0]:
            continue
        try:
            data = os.read(fd, 65_536)
        except OSError:
            break
        if not data:
            break
        rest += data
        text = rest.decode(errors="ignore")
        rest = b"" if not text else rest[len(text.encode()) :]
        screen.feed(text)
    os.waitpid(pid, 0)
    os.close(fd)
    return seen


def draw(frames: list[list[list[Cell]]]) -> str:
    """One SVG with the frames below each other."""
    rows: list[list[Cell] | None] = []
    for frame in frames:
        if rows:
            rows.append(None)
        rows.extend(frame)
    width = round(COLUMNS * CELL_W + 2 * PAD)
    height = round(len(rows) * CELL_H + 2 * PAD + 22)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="a terminal">',
        f"<style>text{{font-family:{FONT};font-size:14px}}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
    ]
    out += [f'<circle cx="{PAD + 6 + 18 * at}" cy="15" r="5" fill="#3a434e"/>' for at in range(3)]
    for number, row in enumerate(rows):
        top = 22 + PAD + number * CELL_H
        if row is None:
            middle = top + CELL_H / 2
            out.append(f'<path d="M{PAD} {middle}H{width - PAD}" stroke="#3a434e" stroke-dasharray="4 4"/>')
            continue
        out.extend(runs(row, top + 13))
    return "\n".join([*out, "</svg>", ""])


def runs(row: list[Cell], baseline: float) -> list[str]:
    """The text elements of one line, one for each stretch of one style. Every character has its place, in any font."""
    out: list[str] = []
    start = 0
    for at in range(1, len(row) + 1):
        if at < len(row) and row[at][1:] == row[start][1:]:
            continue
        text = "".join(cell[0] for cell in row[start:at])
        if text.strip():
            style = f'fill="{row[start][1]}"' + (' font-weight="bold"' if row[start][2] else "")
            places = " ".join(f"{PAD + column * CELL_W:.1f}" for column in range(start, at))
            text = html.escape(text)
            out.append(f'<text x="{places}" y="{baseline:.1f}" {style} xml:space="preserve">{text}</text>')
        start = at
    return out


def main() -> int:
    """Run, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--while", dest="look_at_s", type=float, metavar="S")
    parser.add_argument("file")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    screen = Screen()
    frames = []
    for number, command in enumerate(args.command):
        screen.feed(f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n")
        seen = play(command, screen, args.look_at_s if number == 0 else None)
        if seen:
            frames.append(seen)
    frames.append(screen.copy())
    with open(args.file, "w", encoding="utf-8") as file:
        file.write(draw(frames))
    return 0


if __name__ == "__main__":
    sys.exit(main())
