"""`makeway demo [NAME]`: a seed's story on this machine, told as it happens; it leaves nothing behind."""

from __future__ import annotations

import importlib

from makeway.cli.demo.stage import play
from makeway.cli.demo.timeline import Timeline
from makeway.cli.nearby import did_you_mean
from makeway.cli.output import out
from makeway.errors import UserError

# Name: what it shows. Each is a module here with TITLE, OPTIONS, NEXT and tell(stage).
DEMOS = {
    "kueue": "a team that borrows quota steps aside for one with priority, and comes back by itself",
    "koordinator": "a gang is placed whole, or nobody is evicted for it",
    "kubeai": "models compete for one GPU",
    "skypilot": "a managed task recovers after an eviction",
    "training": "a real training loop saves, steps aside, and resumes where it was",
}


def demo(name: str) -> None:
    if name not in DEMOS:
        raise UserError(
            f'no demo called "{name}".',
            hint=did_you_mean(name, DEMOS) or f"There are: {', '.join(DEMOS)}.",
        )
    story = importlib.import_module(f"makeway.cli.demo.{name}")
    timeline = Timeline()
    timeline.title(f"makeway demo {name}: {story.TITLE}")
    play(story.tell, story.OPTIONS, timeline)
    timeline.note("stopped; no process and no file is left behind")
    out.say("\nTry next:")
    for line in story.NEXT:
        out.say(f"  {line}")
    out.result({"demo": name, "steps": timeline.steps})
