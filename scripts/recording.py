"""Records a command in a terminal of its own and draws the recording as an animated SVG.

    python3 scripts/recording.py record FILE.cast -- COMMAND…    runs it, writes what it printed and when
    python3 scripts/recording.py draw FILE.cast FILE.svg         draws that; no command runs

The recording is an asciicast of version 2, which asciinema plays too. The drawing understands what
commands that print lines need: line ends, returns, erased lines and colours, no moving cursor. It
plays in a loop by CSS alone, so it also moves where a page shows it as a picture; a reader who
prefers less motion sees its last screen.
"""

import codecs
import json
import os
import pty
import re
import select
import shutil
import sys
import time
from xml.sax.saxutils import escape

COLUMNS, ROWS = 116, 16
# Longer pauses are cut to this, so that viewers do not wait for a compiler.
PAUSE_SECONDS_MAX = 1.0
# Lines that follow each other faster than this are slowed down, so that they can be read.
LINE_SECONDS_MIN = 0.12
# How long the last screen is shown.
HOLD_SECONDS = 6.0
# Lines that arrive together are shown together.
TOGETHER_SECONDS = 0.04
RECORD_SECONDS_MAX = 600

ADVANCE, LINE, PAD, BAR = 7.2, 17, 14, 30
SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>]")
STYLE = """
  .frame { fill: #0d1117; stroke: #30363d } .bar { fill: #161b22 } .title { fill: #9198a1 }
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
    fill: #e6edf3; white-space: pre }
  .b { font-weight: 600 } .c31 { fill: #ff7b72 } .c32 { fill: #7ee787 } .c33 { fill: #e3b341 }
  .c34 { fill: #79c0ff } .c35 { fill: #d2a8ff } .c36 { fill: #76e3ea } .c90 { fill: #9198a1 }
"""


def record(path, command):
    """Runs the command in a terminal; returns its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        size = f"stty cols {COLUMNS} rows {ROWS} && exec \"$@\""
        os.execvpe("sh", ["sh", "-c", size, "sh", *command], environment)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begun = time.monotonic()
    with open(path, "w") as file:
        print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS}), file=file)
        while time.monotonic() - begun < RECORD_SECONDS_MAX:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:  # the last process of the terminal has ended
                break
            if not data:
                break
            text = decoder.decode(data)
            seconds = round(time.monotonic() - begun, 3)
            print(json.dumps([seconds, "o", text], ensure_ascii=False), file=file)
            sys.stdout.write(text)
            sys.stdout.flush()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Screen:
    """The lines that a terminal shows at the end: each is a list of (character, classes)."""

    def __init__(self):
        self.lines, self.column, self.classes = [[]], 0, frozenset()

    def put(self, character):
        if self.column == COLUMNS:
            self.newline()
        line = self.lines[-1]
        line.extend([(" ", frozenset())] * (self.column - len(line)))
        line[self.column : self.column + 1] = [(character, self.classes)]
        self.column += 1

    def newline(self):
        self.lines.append([])
        self.column = 0

    def control(self, numbers, letter):
        if letter == "m":
            for number in (int(n or 0) for n in numbers.split(";")):
                if number == 0:
                    self.classes = frozenset()
                elif number == 1:
                    self.classes |= {"b"}
                elif number == 2:
                    self.classes |= {"c90"}
                elif 30 <= number <= 37 or number == 90:
                    self.classes |= {f"c{number}"}
                elif 91 <= number <= 96:
                    self.classes |= {f"c{number - 60}"}
        elif letter == "K":
            del self.lines[-1][self.column if numbers in ("", "0") else 0 :]

    def write(self, text):
        at = 0
        while at < len(text):
            if found := SEQUENCE.match(text, at):
                if found[2]:
                    self.control(found[1], found[2])
                at = found.end()
                continue
            character = text[at]
            if character == "\n":
                self.newline()
            elif character == "\r":
                self.column = 0
            elif character == "\t":
                for _ in range(8 - self.column % 8):
                    self.put(" ")
            elif character >= " ":
                self.put(character)
            at += 1


def frames(path):
    """The lines of the whole run, and [(second, how many lines are there)]."""
    screen, shown, now, before = Screen(), [], 0.0, 0.0
    with open(path) as file:
        next(file)
        for line in file:
            seconds, _, text = json.loads(line)
            now += min(seconds - before, PAUSE_SECONDS_MAX)
            before = seconds
            screen.write(text)
            count = len(screen.lines) - (0 if screen.lines[-1] else 1)
            if shown:
                readable = shown[-1][0] + LINE_SECONDS_MIN * (count - shown[-1][1])
                now = max(now, readable)
            if shown and now - shown[-1][0] < TOGETHER_SECONDS:
                shown[-1] = (shown[-1][0], count)
            elif not shown or shown[-1][1] != count:
                shown.append((now, count))
    while screen.lines and not screen.lines[-1]:
        screen.lines.pop()
    return screen.lines, [(at, min(count, len(screen.lines))) for at, count in shown]


def line_as_svg(number, line):
    runs = []
    for character, classes in line:
        if runs and runs[-1][1] == classes:
            runs[-1][0] += character
        else:
            runs.append([character, classes])
    words = "".join(
        f'<tspan class="{" ".join(sorted(classes))}">{escape(text)}</tspan>'
        if classes
        else escape(text)
        for text, classes in runs
    )
    y = BAR + PAD + LINE * number + 8
    heading = ' class="b c36"' if words.startswith("== ") else ""
    return f'<text x="{PAD}" y="{y}" textLength="{ADVANCE * len(line):.1f}"{heading}>{words}</text>'


def draw(path, into, title):
    lines, shown = frames(path)
    total = shown[-1][0] + HOLD_SECONDS
    width = round(COLUMNS * ADVANCE + 2 * PAD)
    height = BAR + 2 * PAD + LINE * ROWS

    def keyframes(name, offset_of):
        steps, last = [], None
        for at, count in shown:
            offset = offset_of(count)
            if offset != last:
                steps.append(f"{100 * at / total:.2f}% {{ transform: translateY({offset}px) }}")
                last = offset
        steps[0] = steps[0].replace(steps[0].split("%")[0], "0", 1)
        steps.append(f"100% {{ transform: translateY({last}px) }}")
        return f"@keyframes {name} {{ {' '.join(steps)} }}"

    scroll = lambda count: -LINE * max(0, count - ROWS)  # noqa: E731
    cover = lambda count: LINE * count  # noqa: E731
    motion = f"{total:.2f}s step-end infinite"
    style = "\n".join(
        [
            STYLE,
            keyframes("scroll", scroll),
            keyframes("cover", cover),
            # Without animation the last screen is shown.
            f".lines {{ transform: translateY({scroll(len(lines))}px); animation: scroll {motion} }}",
            f".cover {{ transform: translateY({LINE * len(lines)}px); animation: cover {motion} }}",
            "@media (prefers-reduced-motion: reduce) { .lines, .cover { animation: none } }",
        ]
    )
    body = [line_as_svg(number, line) for number, line in enumerate(lines) if line]
    top = BAR + PAD - 5
    drawing = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{escape(title)}</title>
<style>{style}</style>
<defs><clipPath id="inside"><rect x="1" y="{top}" width="{width - 2}" height="{LINE * ROWS + 2}"/></clipPath></defs>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" class="frame"/>
<path d="M1 {BAR} V9 a8 8 0 0 1 8 -8 H{width - 9} a8 8 0 0 1 8 8 V{BAR} Z" class="bar"/>
<circle cx="18" cy="15" r="5" fill="#ff5f57"/><circle cx="36" cy="15" r="5" fill="#febc2e"/><circle cx="54" cy="15" r="5" fill="#28c840"/>
<text x="{width / 2:g}" y="19" text-anchor="middle" class="title">{escape(title)}</text>
<g clip-path="url(#inside)"><g class="lines">
{chr(10).join(body)}
<rect class="cover" x="1" y="{BAR + PAD - 5}" width="{width - 2}" height="{LINE * (len(lines) + ROWS)}" fill="#0d1117"/>
</g></g>
</svg>
"""
    with open(into, "w") as file:
        file.write(drawing)
    return total


def main():
    match sys.argv[1:]:
        case ["record", path, "--", *command] if command:
            if not shutil.which("stty"):
                sys.exit("recording: stty is missing")
            return record(path, command)
        case ["draw", path, into, *title]:
            total = draw(path, into, " ".join(title) or "recording")
            print(f"{into}: {total:.0f} s, {os.path.getsize(into) // 1024} KiB")
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
