"""Short stories in the manner of bAbI's first five tasks, written by rule."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
WALKERS = ("Daniel", "John", "Mary", "Sandra")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")
_OPPOSITE = {"east": "west", "north": "south", "south": "north", "west": "east"}
_MOVE = ("moved to", "went to", "went back to", "journeyed to", "travelled to")
_TAKE = ("grabbed", "got", "picked up", "took")
_DROP = ("discarded", "dropped", "left", "put down")
_GIVE = ("gave", "handed", "passed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """Facts in their order, and a question with one answer."""

    facts: tuple[str, ...]
    question: str
    answer: str


@dataclass(slots=True)
class _World:
    """Places and possessions of the people, as the story goes on."""

    draw: Random
    people: tuple[str, ...]
    facts: list[str] = field(default_factory=list)
    place: dict[str, str] = field(default_factory=dict)
    """Of people who have moved."""
    carrier: dict[str, str] = field(default_factory=dict)
    """Of objects in someone's hands."""
    track: dict[str, list[str]] = field(default_factory=dict)
    """Places of each object, in order, without repeats in a row."""

    def move(self) -> None:
        """Someone goes elsewhere, with everything carried."""
        who = self.draw.choice(self.people)
        where = self.draw.choice([place for place in PLACES if place != self.place.get(who)])
        self.place[who] = where
        self.facts.append(f"{who} {self.draw.choice(_MOVE)} the {where}.")
        for item, holder in self.carrier.items():
            if holder == who:
                self._note(item, where)

    def take(self) -> None:
        """Someone takes an object that is not yet anywhere, or lies where the person is."""
        can = [
            (who, item)
            for who, where in self.place.items()
            for item in OBJECTS
            if item not in self.carrier and self.track.get(item, [where])[-1] == where
        ]
        if can:
            who, item = self.draw.choice(can)
            self.carrier[item] = who
            self._note(item, self.place[who])
            self.facts.append(f"{who} {self.draw.choice(_TAKE)} the {item}.")

    def drop(self) -> None:
        """Someone lets go of an object."""
        if self.carrier:
            item = self.draw.choice(sorted(self.carrier))
            self.facts.append(f"{self.carrier.pop(item)} {self.draw.choice(_DROP)} the {item}.")

    def _note(self, item: str, where: str) -> None:
        track = self.track.setdefault(item, [])
        if not track or track[-1] != where:
            track.append(where)


def _one_fact(draw: Random) -> Story:
    """Where is Mary? Her last move tells."""
    world = _World(draw, WALKERS)
    for _ in range(draw.choice((2, 4, 6, 8, 10))):
        world.move()
    who = draw.choice(sorted(world.place))
    return Story(facts=tuple(world.facts), question=f"Where is {who}?", answer=world.place[who])


def _two_facts(draw: Random) -> Story:
    """Where is the milk? Who has or had it, and where that person was."""
    world = _tell(draw, draw.randint(4, 14), lambda w: [o for o in w.track if len(w.track[o]) > 1])
    item = draw.choice([name for name in OBJECTS if len(world.track.get(name, ())) > 1])
    return Story(
        facts=tuple(world.facts), question=f"Where is the {item}?", answer=world.track[item][-1]
    )


def _three_facts(draw: Random) -> Story:
    """Where was the milk before the kitchen? A place where it has been once."""
    world = _tell(draw, draw.randint(6, 20), lambda w: _places_after_others(w.track))
    item, before, after = draw.choice(_places_after_others(world.track))
    return Story(
        facts=tuple(world.facts),
        question=f"Where was the {item} before the {after}?",
        answer=before,
    )


def _two_sides(draw: Random) -> Story:
    """What is north of the kitchen? Said in one of two facts that share a place."""
    first, middle, last = draw.sample(PLACES, 3)
    side_1, side_2 = draw.sample(sorted(_OPPOSITE), 2)
    second = [(last, side_2, middle)]
    if side_2 != _OPPOSITE[side_1]:  # else both places would lie on the same side of the middle
        second.append((middle, side_2, last))
    sides = [(first, side_1, middle), draw.choice(second)]
    draw.shuffle(sides)
    subject, side, other = draw.choice(sides)
    question, answer = draw.choice(
        [(f"What is {side} of the {other}?", subject), (f"What is the {subject} {side} of?", other)]
    )
    facts = tuple(f"The {a} is {direction} of the {b}." for a, direction, b in sides)
    return Story(facts=facts, question=question, answer=answer)


def _gift(draw: Random) -> Story:
    """Who gave what to whom? A question that only one gift answers."""
    world = _World(draw, GIVERS)
    gifts: list[tuple[str, str, str]] = []
    wanted = draw.randint(4, 14)
    while len(world.facts) < wanted or not _gift_questions(gifts):
        act = draw.random()
        if act < 0.45:
            world.move()
        elif act < 0.7:
            world.take()
        elif world.carrier:
            item = draw.choice(sorted(world.carrier))
            giver = world.carrier[item]
            receiver = draw.choice([person for person in GIVERS if person != giver])
            world.carrier[item] = receiver
            gifts.append((giver, item, receiver))
            world.facts.append(f"{giver} {draw.choice(_GIVE)} the {item} to {receiver}.")
        if len(world.facts) > 3 * wanted:  # many equal gifts: begin again
            world, gifts = _World(draw, GIVERS), []
    question, answer = draw.choice(_gift_questions(gifts))
    return Story(facts=tuple(world.facts), question=question, answer=answer)


def _gift_questions(gifts: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Questions that exactly one gift answers, with the answers."""
    asked: dict[str, list[str]] = {}
    for giver, item, receiver in gifts:
        for question, answer in (
            (f"What did {giver} give to {receiver}?", item),
            (f"Who gave the {item} to {receiver}?", giver),
            (f"Who did {giver} give the {item} to?", receiver),
            (f"Who gave the {item}?", giver),
            (f"Who received the {item}?", receiver),
        ):
            asked.setdefault(question, []).append(answer)
    return [(question, answers[0]) for question, answers in asked.items() if len(answers) == 1]


def _tell(draw: Random, wanted: int, ready: Callable[[_World], Sequence[object]]) -> _World:
    """A world with at least so many facts, and something to ask about."""
    world = _World(draw, WALKERS)
    while len(world.facts) < wanted or not ready(world):
        act = draw.random()
        if act < 0.6:
            world.move()
        elif act < 0.85:
            world.take()
        else:
            world.drop()
        if len(world.facts) > 3 * wanted:  # nobody carried anything: begin again
            world = _World(draw, WALKERS)
    return world


def _places_after_others(track: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    """Object, place, and the next place, where it was only one time."""
    return [
        (item, places[i - 1], places[i])
        for item, places in track.items()
        for i in range(1, len(places))
        if places.count(places[i]) == 1
    ]


STORIES: dict[str, Callable[[Random], Story]] = {
    "qa1": _one_fact,
    "qa2": _two_facts,
    "qa3": _three_facts,
    "qa4": _two_sides,
    "qa5": _gift,
}
"""By task."""
LABELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), PLACES),
    "qa5": (*GIVERS, *OBJECTS),
}
"""Possible answers, by task."""


def mentioned(task: str, story: Story) -> list[str]:
    """Labels of the kind that is asked for, which the question does not name.

    They stand in the order of the facts, with repeats; the answer is among them.
    """
    kinds = LABELS[task]
    if task == "qa5":
        kinds = OBJECTS if story.question.startswith("What") else GIVERS
    asked = set(_WORD.findall(story.question))
    words = _WORD.findall(" ".join(story.facts))
    return [word for word in words if word in kinds and word not in asked]


_WORD = re.compile(r"\w+")
