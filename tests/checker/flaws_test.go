package main

// flaw is one planted bug of the reference: what a broken product would do. Each must be refused.
type flaw int

const (
	none flaw = iota
	earlyExpiry
	lateExpiry
	tokenBack
	tokenReused
	tokenOfRenewal
	guardIgnored
	identityIgnored
	teardownEntered
	graceSkipped
	twoOwners
	revived
	renewCreates
	renewalForgotten
	releaseOfPeer
	releaseLost
	grantLost
	doubleEffect
	effectAfterUnavailable
	unknownAsRefusal
	staleRead
	staleReadAsNew
	settleForgotten
	lateAfterSettle
	settlesHeld
	positionsSwapped
	clockBack
	wrongMsLeft
	heldBeforeLies
	previousOwnerHidden
	flawCount
)

var flawNames = [...]string{"none", "a lease expires early", "a lease expires late",
	"a token goes back", "a token is used twice", "a renewal draws a token", "a guard is ignored",
	"an identity is ignored", "a teardown is entered", "adopted before the grace is over",
	"two owners", "a released lease is revived", "a renewal creates ownership",
	"a renewal is forgotten", "a release ends a peer's lease", "a release is lost",
	"a grant is lost", "a retry has a second effect", "an effect after UNAVAILABLE",
	"a time-out is reported as HELD", "a stale read", "a stale read with a new position",
	"a settling is forgotten", "an effect after the settling", "a settling ends what was held before",
	"positions are exchanged", "the clock goes back", "ms_left is wrong", "held_before is wrong",
	"the previous owner is not named"}

// misfortune is what the flaws do around an operation, beyond its execution.
func (m *reference) misfortune(id int, r *record) []event {
	after := func(ms int64, what func()) []event {
		return []event{{r.Return + ms*nsPerMs, what}}
	}
	if m.rng.Intn(12) != 0 {
		return nil
	}
	switch m.flaw {
	case grantLost:
		return after(0, func() {
			l := m.leases[r.Key]
			if r.grants() && l != nil && l.token == r.Token && l.expiry >= m.clock {
				delete(m.leases, r.Key)
				m.hits++
			}
		})
	case doubleEffect:
		return after(5, func() {
			copied := *r
			m.execute(id, &copied)
			m.hitIf(copied.grants())
		})
	case effectAfterUnavailable:
		return after(0, func() {
			m.hitIf(r.grants())
			*r = record{Kind: "op", Ns: r.Ns, Key: r.Key, Op: r.Op, Owner: r.Owner, Call: r.Call,
				Return: r.Return, Error: "UNAVAILABLE", line: r.line}
		})
	case settlesHeld:
		return after(1, func() {
			l := m.leases[r.Key]
			if l != nil && r.grants() && r.Before && l.token == r.Token && l.expiry >= m.clock {
				m.bury(r.Key, endSettled, m.clock)
				m.hits++
			}
		})
	}
	return after(0, func() { m.falsify(r) })
}

// falsify changes an answer after the fact.
func (m *reference) falsify(r *record) {
	switch {
	case m.flaw == unknownAsRefusal && r.Op == "claim" && r.grants() && !r.Before:
		r.Outcome, r.Token, r.MsLeft = "HELD", 0, 0
		r.Holder = &holder{"o9", "own", m.token - 1, 50}
	case m.flaw == staleRead && r.Op == "owner" && r.Index > 40 && r.Outcome == "LEASE":
		r.Index -= 40 // as if a follower had answered from what it had
	case m.flaw == staleReadAsNew && r.Outcome == "LEASE":
		r.Outcome, r.Holder = "NONE", nil
	case m.flaw == positionsSwapped && r.Op != "owner" && r.Index > 30:
		r.Index -= 30
	case m.flaw == clockBack && r.Op != "owner" && r.Clock > 30:
		r.Clock -= 30
	case m.flaw == wrongMsLeft && r.Holder != nil:
		r.Holder.MsLeft++
	case m.flaw == heldBeforeLies && r.grants() && r.Op != "renew":
		r.Before = !r.Before
	case m.flaw == previousOwnerHidden && r.Op == "take" && r.Outcome == "GRANTED" && r.Holder != nil:
		r.Holder = nil
	default:
		return
	}
	m.hits++
}
