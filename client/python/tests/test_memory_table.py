"""The lease table of a node in memory: what a test against a socket cannot say without waiting.

The decision table itself is in test_node_contract.py, where a real node has to pass it as well.
"""

from __future__ import annotations

import pytest

from tenure.results import Kind, Reason, State
from tenure.testing.table import (
    Ask,
    Decision,
    Filter,
    Grant,
    KeyItem,
    LeaseTable,
    Limits,
    SetRenewed,
    Verb,
)

NS, OURS, THEIRS = b"default", b"gw-1", b"gw-2"
TTL_MS = 1000


def ask(
    table: LeaseTable,
    verb: Verb,
    key: bytes = b"k",
    *,
    owner: bytes = OURS,
    ttl_ms: int = TTL_MS,
    grace_ms: int | None = None,
    if_token: int | None = None,
    meta: bytes | None = None,
    identity: bytes | None = None,
) -> Decision:
    """One key, of the namespace that is used throughout."""
    [decision] = table.decide(
        Ask(verb, NS, owner, ttl_ms, grace_ms), [KeyItem(key, if_token, meta, identity)]
    )
    return decision


def token_of(decision: Decision) -> int:
    assert decision.token is not None
    return decision.token


def grant_of(decision: Decision) -> Grant:
    assert decision.grant is not None
    return decision.grant


# --- expiry -------------------------------------------------------------------------------------


def test_a_lease_is_there_at_its_expiry_and_gone_after_it() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    table.advance(TTL_MS)
    assert table.owner(NS, b"k") is not None
    table.advance(TTL_MS + 1)
    assert table.owner(NS, b"k") is None


def test_a_renewal_moves_the_expiry_also_to_an_earlier_time() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE, ttl_ms=5000)
    ask(table, Verb.RENEW, ttl_ms=100)
    table.advance(101)
    assert table.owner(NS, b"k") is None


def test_a_lease_that_was_extended_outlives_its_first_expiry() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE, ttl_ms=100)
    ask(table, Verb.RENEW, ttl_ms=5000)
    table.advance(5000)
    assert table.owner(NS, b"k") is not None


def test_the_clock_never_goes_back() -> None:
    table = LeaseTable()
    table.advance(500)
    table.advance(400)
    assert table.clock_ms == 500


def test_many_renewals_of_few_leases_do_not_grow_the_queue_of_expiries() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    for _ in range(10_000):
        ask(table, Verb.RENEW)
    assert len(table._due) < 2_000


def test_many_ends_of_few_keys_do_not_grow_the_queue_of_tombstones() -> None:
    table = LeaseTable()
    for _ in range(5_000):
        ask(table, Verb.TAKE)
        ask(table, Verb.RELEASE)
    assert len(table._ages) < 2_000


# --- unowned since ------------------------------------------------------------------------------


def test_grace_counts_from_the_birth_where_nobody_ever_had_the_key() -> None:
    table = LeaseTable()
    table.advance(300)
    assert ask(table, Verb.CLAIM, grace_ms=1000).grace_ms_left == 700
    table.advance(999)
    assert ask(table, Verb.CLAIM, grace_ms=1000).grace_ms_left == 1
    table.advance(1000)
    assert ask(table, Verb.CLAIM, grace_ms=1000).kind is Kind.GRANTED


def test_grace_counts_from_the_expiry_however_late_the_clock_came() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE, owner=THEIRS)
    table.advance(TTL_MS + 4000)
    assert ask(table, Verb.CLAIM, grace_ms=5000).grace_ms_left == 1000


def test_grace_counts_from_a_release() -> None:
    table = LeaseTable()
    table.advance(10_000)
    ask(table, Verb.TAKE)
    table.advance(10_500)
    ask(table, Verb.RELEASE)
    table.advance(10_700)
    assert ask(table, Verb.CLAIM, grace_ms=1000).grace_ms_left == 800


def test_grace_counts_from_a_purge_also_for_keys_that_nobody_had() -> None:
    table = LeaseTable()
    table.advance(10_000)
    assert table.purge(NS) == 0
    table.advance(10_400)
    assert ask(table, Verb.CLAIM, grace_ms=1000).grace_ms_left == 600
    other = table.decide(Ask(Verb.CLAIM, b"other", OURS, TTL_MS, 1000), [KeyItem(b"k")])
    assert other[0].kind is Kind.GRANTED


def test_grace_counts_from_the_last_end_that_was_forgotten_for_room() -> None:
    table = LeaseTable(limits=Limits(tombstones_max=1))
    table.advance(10_000)
    for key in (b"a", b"b"):
        ask(table, Verb.TAKE, key)
        ask(table, Verb.RELEASE, key)
    assert table.tombstone_count == 1
    assert ask(table, Verb.CLAIM, b"never had", grace_ms=1000).grace_ms_left == 1000


def test_grace_with_destroy_begins_as_a_marker() -> None:
    table = LeaseTable()
    table.advance(1000)
    assert ask(table, Verb.DESTROY, grace_ms=1000).kind is Kind.GRANTED
    lease = table.owner(NS, b"k")
    assert lease is not None and lease.state is State.DEL


# --- what is remembered of a key ----------------------------------------------------------------


def lapsed(state_verb: Verb = Verb.TAKE, owner: bytes = OURS) -> tuple[LeaseTable, int]:
    """A table in which a lease has just expired, and its token."""
    table = LeaseTable()
    token = token_of(ask(table, state_verb, owner=owner))
    table.advance(TTL_MS + 1)
    return table, token


def test_what_lapsed_is_reestablished_by_its_token() -> None:
    table, token = lapsed()
    again = ask(table, Verb.REESTABLISH, if_token=token)
    assert again.kind is Kind.REESTABLISHED and token_of(again) > token


def test_what_was_released_is_not_reestablished_by_its_token() -> None:
    table = LeaseTable()
    token = token_of(ask(table, Verb.TAKE))
    ask(table, Verb.RELEASE)
    assert ask(table, Verb.REESTABLISH, if_token=token).kind is Kind.LAPSED
    assert ask(table, Verb.REESTABLISH).kind is Kind.REESTABLISHED


def test_what_a_peer_had_since_is_not_reestablished_by_its_token() -> None:
    table = LeaseTable()
    token = token_of(ask(table, Verb.TAKE))
    ask(table, Verb.TAKE, owner=THEIRS)
    table.advance(TTL_MS + 1)
    assert ask(table, Verb.REESTABLISH, if_token=token).kind is Kind.LAPSED


def test_a_later_teardown_of_ones_own_is_not_reestablished_by_the_earlier_token() -> None:
    table = LeaseTable()
    token = token_of(ask(table, Verb.TAKE))
    ask(table, Verb.DESTROY)
    table.advance(TTL_MS + 1)
    assert ask(table, Verb.REESTABLISH, if_token=token).kind is Kind.LAPSED


def test_a_tombstone_of_an_older_lease_does_not_forbid_reestablishment() -> None:
    table, token = lapsed(owner=THEIRS)
    assert ask(table, Verb.REESTABLISH, if_token=token + 10).kind is Kind.REESTABLISHED


def test_nothing_is_reestablished_by_its_token_when_a_larger_one_is_forgotten() -> None:
    table, token = lapsed()
    ask(table, Verb.TAKE, b"other")
    ask(table, Verb.RELEASE, b"other")
    table.advance(TTL_MS + 1 + 600_001)
    assert table.tombstone_count == 0
    assert ask(table, Verb.REESTABLISH, if_token=token).kind is Kind.LAPSED
    assert ask(table, Verb.REESTABLISH, if_token=token + 1000).kind is Kind.REESTABLISHED


def test_a_tombstone_is_kept_for_ten_minutes_and_no_longer() -> None:
    table, _ = lapsed()
    table.advance(TTL_MS + 600_000)
    assert table.tombstone_count == 1
    table.advance(TTL_MS + 600_001)
    assert table.tombstone_count == 0


def test_a_new_grant_replaces_the_tombstone() -> None:
    table, _ = lapsed()
    ask(table, Verb.TAKE)
    assert table.tombstone_count == 0


# --- sets ---------------------------------------------------------------------------------------


def renewed(table: LeaseTable, version: int | None = None) -> SetRenewed:
    return table.renew_all(NS, OURS, TTL_MS, version)


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        (lambda table: ask(table, Verb.RELEASE), Reason.RELEASED),
        (lambda table: ask(table, Verb.TAKE, owner=THEIRS), Reason.TAKEN),
        (lambda table: ask(table, Verb.DESTROY), Reason.TEARDOWN),
        (lambda table: table.advance(TTL_MS + 1), Reason.EXPIRED),
        (lambda table: table.purge(NS), Reason.PURGED),
        (lambda table: table.release_all(NS, OURS), Reason.RELEASED),
    ],
)
def test_renew_all_names_what_left_and_why(leave: object, reason: Reason) -> None:
    table = LeaseTable()
    token = token_of(ask(table, Verb.TAKE))
    version = renewed(table).set_version
    assert callable(leave)
    leave(table)
    after = renewed(table, version)
    assert [(one.key, one.token, one.reason) for one in after.departures] == [
        (b"k", token, reason)
    ]
    assert after.set_version != version and after.count == 0 and not after.list_again


def test_a_settled_lease_leaves_the_set() -> None:
    table = LeaseTable()
    version = renewed(table).set_version
    assert table.settle(grant_of(ask(table, Verb.TAKE)))
    assert [one.reason for one in renewed(table, version).departures] == [Reason.SETTLED]


def test_ones_own_claim_again_does_not_change_the_set_version() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    version = renewed(table).set_version
    ask(table, Verb.CLAIM)
    assert renewed(table, version) == SetRenewed(1, version, (), False)


def test_a_marker_is_neither_renewed_nor_counted() -> None:
    table = LeaseTable()
    ask(table, Verb.DESTROY)
    assert renewed(table).count == 0
    table.advance(TTL_MS + 1)
    assert table.owner(NS, b"k") is None


def test_a_version_from_before_what_is_remembered_means_list_again() -> None:
    table = LeaseTable(limits=Limits(departures_max=2))
    ask(table, Verb.TAKE, b"stays")
    first = renewed(table).set_version
    for number in range(3):
        ask(table, Verb.TAKE, b"%d" % number)
        ask(table, Verb.RELEASE, b"%d" % number)
    again = renewed(table, first)
    assert again.list_again and again.departures == ()


def test_a_version_from_a_table_that_was_lost_means_list_again() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    assert renewed(table, 1 << 60).list_again


def test_an_owner_without_leases_is_forgotten_after_the_retention() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    version = renewed(table).set_version
    ask(table, Verb.RELEASE)
    last = renewed(table).set_version
    table.advance(600_001)
    assert table.owner_count == 0
    assert renewed(table, version).list_again
    assert not renewed(table, last).list_again


# --- settling -----------------------------------------------------------------------------------


def test_a_grant_that_was_written_since_is_not_settled() -> None:
    table = LeaseTable()
    grant = grant_of(ask(table, Verb.TAKE))
    ask(table, Verb.RENEW)
    assert not table.settle(grant)
    assert table.owner(NS, b"k") is not None


@pytest.mark.parametrize("verb", [Verb.TAKE, Verb.CLAIM, Verb.DESTROY])
def test_what_the_caller_held_before_is_not_to_be_settled(verb: Verb) -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    assert ask(table, verb).grant is None


def test_a_reestablishment_is_not_to_be_settled() -> None:
    assert ask(LeaseTable(), Verb.REESTABLISH).grant is None


# --- limits -------------------------------------------------------------------------------------


def test_a_new_lease_beyond_the_limit_is_unavailable_and_an_old_one_is_not() -> None:
    table = LeaseTable(limits=Limits(leases_max=1))
    ask(table, Verb.TAKE)
    refused = ask(table, Verb.TAKE, b"other")
    assert (refused.kind, refused.limit) == (Kind.UNAVAILABLE, "leases")
    assert ask(table, Verb.TAKE).kind is Kind.GRANTED
    table.advance(TTL_MS + 1)
    assert ask(table, Verb.TAKE, b"other").kind is Kind.GRANTED


def test_the_limit_of_a_namespace_is_named() -> None:
    table = LeaseTable(limits=Limits(leases_per_namespace_max=1))
    ask(table, Verb.TAKE)
    assert ask(table, Verb.TAKE, b"other").limit == "leases_per_namespace"
    other = table.decide(Ask(Verb.TAKE, b"other", OURS, TTL_MS), [KeyItem(b"k")])
    assert other[0].kind is Kind.GRANTED


# --- pages --------------------------------------------------------------------------------------


def test_pages_are_in_byte_order_and_begin_after_the_last_key() -> None:
    table = LeaseTable()
    for key in ("b", "ä", "a/2", "a/1", "Z"):
        ask(table, Verb.TAKE, key.encode())
    first, more = table.page(Filter(NS), 3)
    assert ([lease.key for lease in first], more) == ([b"Z", b"a/1", b"a/2"], True)
    rest, more = table.page(Filter(NS, after=b"a/2"), 3)
    assert ([lease.key for lease in rest], more) == ([b"b", "ä".encode()], False)


def test_a_page_that_holds_exactly_all_has_no_more() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE)
    assert table.page(Filter(NS), 1)[1] is False


def test_a_filter_wants_owner_state_and_prefix_together() -> None:
    table = LeaseTable()
    ask(table, Verb.TAKE, b"a/own")
    ask(table, Verb.DESTROY, b"a/del")
    ask(table, Verb.TAKE, b"a/theirs", owner=THEIRS)
    ask(table, Verb.TAKE, b"b/own")
    wanted = Filter(NS, owner=OURS, state=State.OWN, prefix=b"a/")
    assert [lease.key for lease in table.page(wanted, 10)[0]] == [b"a/own"]
    assert table.count(wanted) == 1
