"""Events: told as their components would, and repetitions counted."""

from __future__ import annotations

from makeway.kube.actions import Tell
from makeway.kube.events import Scribe, series, shortened


def tell(note: str = "words", version: str = "1", *, once: bool = False) -> Tell:
    about = {
        "kind": "Workload",
        "namespace": "team",
        "name": "w",
        "uid": "u",
        "resourceVersion": version,
    }
    return Tell(about=about, reason="Pending", note=note, component="kueue-admission", once=once)


def test_an_event_has_what_the_api_asks_for() -> None:
    event, told = Scribe().write(tell(), 1000.5)
    assert event is not None
    assert told is not None
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("w.")
    assert (event["action"], event["reason"], event["type"]) == ("Pending", "Pending", "Normal")
    assert event["eventTime"] == "1970-01-01T00:16:40.500000Z"
    assert event["reportingInstance"].startswith("kueue-admission-")


def test_the_same_words_about_the_same_version_are_counted() -> None:
    scribe = Scribe()
    scribe.write(tell(), 1000.0)
    event, told = scribe.write(tell(), 1001.0)
    assert event is None
    assert told is not None
    assert series(told) == {
        "series": {"count": 2, "lastObservedTime": "1970-01-01T00:16:41.000000Z"}
    }


def test_a_later_version_or_a_later_time_is_news() -> None:
    scribe = Scribe()
    scribe.write(tell(), 1000.0)
    assert scribe.write(tell(version="2"), 1001.0)[0] is not None
    assert scribe.write(tell(), 2000.0)[0] is not None


def test_a_lasting_state_is_told_once() -> None:
    scribe = Scribe()
    assert scribe.write(tell(once=True), 1000.0)[0] is not None
    assert scribe.write(tell(version="7", once=True), 1001.0) == (None, None)


def test_names_do_not_collide_within_a_microsecond() -> None:
    scribe = Scribe()
    names = {scribe.write(tell(str(n)), 1000.0)[0]["metadata"]["name"] for n in range(50)}  # type: ignore[index]
    assert len(names) == 50


def test_long_notes_are_cut_at_whole_characters() -> None:
    assert shortened("kurz") == "kurz"
    cut = shortened("ä" * 2000)
    assert len(cut.encode()) <= 1024
    assert cut.endswith(" ...")
