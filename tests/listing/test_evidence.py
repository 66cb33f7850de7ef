"""What both sides know of pools: who counts as one, what each side says, and how many names are compared for it."""

import time
from typing import Any

import pytest

from discovery.listing import evidence as module
from discovery.listing.evidence import Evidence
from discovery.listing.explain import only_registered
from discovery.mcs.names import Names
from tests.listing.sides import alone, evidence, folded, frontend, key, relay

POOL = "east-1/llm/llama"


def test_all_pools_are_those_that_register_or_have_a_relay_that_is_not_scaled_to_zero() -> None:
    found = evidence(
        ["a/n/registered"],
        [relay("a/n/ready"), relay("a/n/no-port", ports=[]), relay("a/n/zero", endpoints=[]), frontend("a/n/shop")],
    )
    assert found.pools() == {key("a/n/registered"), key("a/n/ready"), key("a/n/no-port")}


def test_a_service_that_two_watchers_see_counts_as_the_one_that_can_be_used() -> None:
    unready = relay(POOL, endpoints=[{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}])
    for views in ([folded(unready), folded(relay(POOL))], [folded(relay(POOL)), folded(unready)]):
        found = Evidence({}, [state for view in views for state in view.services()], Names())
        assert found.is_ready(key(POOL)) is True


def test_each_side_says_what_it_has_of_a_pool() -> None:
    found = evidence([POOL, "west/llm/llama"], [relay(POOL), frontend(POOL, endpoints=["10.0.0.2", "10.0.0.3"])])
    assert found.facts(key(POOL)) == (
        "registration: lives, for the model m; also registered: 'west/llm/llama'",
        "relays: Service llm/llama-pool-relay of east-1 has 1 slice with 1 usable address",
        "frontends: Service llm/llama-frontend of east-1 has 1 slice with 2 usable addresses",
    )
    assert found.facts(key("west/llm/llama"))[1:] == (
        "relays: Service llm/llama-pool-relay of west is not imported, only from 'east-1'",
        "frontends: Service llm/llama-frontend of west is not imported",
    )


def test_facts_where_addresses_come_with_the_registrations() -> None:
    found = alone(("a/n/p", ["http://10.0.0.1:1", "http://10.0.0.2:1"]))
    assert found.facts(key("a/n/p")) == ("registration: lives, for the model m, with 2 relays",)
    assert found.facts(key("b/n/p")) == ("registration: none lives; also registered: 'a/n/p'",)


def test_a_round_of_questions_compares_no_more_names_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = module.difflib.get_close_matches

    def counting(word: str, words: Any, *more: Any) -> Any:
        compared.append(len(words))
        return real(word, words, *more)

    monkeypatch.setattr(module.difflib, "get_close_matches", counting)
    registered = [f"east-1/llm/pool-{number}" for number in range(1000)]
    found = evidence(registered, [relay(f"east-1/llm/other-{number}") for number in range(1000)])
    began = time.process_time()
    for one in registered:
        only_registered(found, key(one))
    assert 0 < sum(compared) <= module.COMPARISONS
    assert time.process_time() - began < 2
