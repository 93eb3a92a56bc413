"""What a pod on this machine says about being here: in events, reasons and messages."""

from __future__ import annotations

from makeway.client.resource import Object
from makeway.control.clock import timestamp


def spoken(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def image_not_run(container: Object) -> str:
    return (
        f'container "{container["name"]}" relies on the entrypoint of its image'
        f" {container.get('image', '')}, and images are not run on one machine. Name a command in"
        " the pod to run it as a process here, or run it on a cluster: makeway install"
    )


def runs_as_process(container: Object) -> str:
    image = container.get("image")
    what = f"; its image {image} is not used" if image else ""
    return f'The command of container "{container["name"]}" runs as a process here{what}'


def stopped_with_machine(now: float) -> Object:
    return {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "makeway was stopped on this machine",
        "lastTransitionTime": timestamp(now),
    }
