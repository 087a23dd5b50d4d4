package main

import (
	"fmt"
	"math/rand"
	"sort"
)

// A small cluster that exists only here: a log, a table, a clock, clients that ask at random, answers
// that get lost. It is written as a machine that executes commands, the model as what may follow
// what; that both agree on thousands of histories says that neither refuses what the other allows.

const nsPerMs = 1000000

type lease struct {
	owner, mode, identity string
	token                 uint64
	expiry                int64
	settles               int // the operation whose settling ends it, or -1
}

type tombstone struct {
	why         end
	owner, mode string
	token       uint64
	since       int64
}

// reference executes commands in the order of a log.
type reference struct {
	rng    *rand.Rand
	now    int64 // ns
	clock  int64
	index  uint64
	token  uint64
	leases map[string]*lease
	tombs  map[string]tombstone
	lines  []*record
	flaw   flaw
	hits   int // how often the flaw has come up
}

func newReference(seed int64, f flaw) *reference {
	return &reference{index: 1, rng: rand.New(rand.NewSource(seed)), token: 1 << 40, flaw: f,
		leases: map[string]*lease{}, tombs: map[string]tombstone{}}
}

func (m *reference) hitIf(yes bool) {
	if yes {
		m.hits++
	}
}

// drawn is the next token.
func (m *reference) drawn(key string) uint64 {
	m.token += uint64(1 + m.rng.Intn(3))
	return m.token
}

func (m *reference) bury(key string, why end, since int64) {
	l := m.leases[key]
	m.tombs[key] = tombstone{why, l.owner, l.mode, l.token, since}
	delete(m.leases, key)
}

// live is the lease of a key at the present clock.
func (m *reference) live(key string) *lease {
	l := m.leases[key]
	if l == nil {
		return nil
	}
	early := int64(0)
	if m.flaw == earlyExpiry && l.expiry >= m.clock && m.rng.Intn(4) == 0 {
		early = 40
	}
	late := int64(0)
	if m.flaw == lateExpiry && l.expiry < m.clock && l.expiry+200 >= m.clock {
		late = 200
	}
	if l.expiry-early+late < m.clock {
		m.hitIf(l.expiry >= m.clock)
		m.bury(key, endExpired, l.expiry)
		return nil
	}
	if l.expiry < m.clock {
		m.hits++
	}
	return l
}

func (m *reference) shows(r *record, l *lease) {
	r.Holder = &holder{l.owner, l.mode, l.token, l.expiry - m.clock}
}

func (m *reference) grant(id int, r *record, l *lease, mode string) {
	fresh := &lease{owner: r.Owner, mode: mode, identity: r.Identity, settles: -1}
	if l != nil && r.Identity == "" {
		fresh.identity = l.identity
	}
	if (l == nil || l.owner != r.Owner) && r.Op != "renew" {
		fresh.settles = id
	}
	fresh.token = m.drawn(r.Key)
	if m.flaw == tokenBack && l == nil && m.tombs[r.Key].token != 0 && m.rng.Intn(3) == 0 {
		fresh.token = m.tombs[r.Key].token - 1
		m.hits++
	}
	if m.flaw == tokenReused && l == nil && m.tombs[r.Key].token != 0 && m.rng.Intn(3) == 0 {
		fresh.token = m.tombs[r.Key].token
		m.hits++
	}
	fresh.expiry = m.clock + r.TTL
	m.leases[r.Key] = fresh
	delete(m.tombs, r.Key)
	r.Outcome, r.Token, r.MsLeft = "GRANTED", fresh.token, r.TTL
	r.Before = l != nil && l.owner == r.Owner
	if l != nil && l.owner != r.Owner {
		m.shows(r, l)
	}
	if r.Op == "renew" {
		r.Outcome = "REESTABLISHED"
	}
}

func (m *reference) refuse(r *record, word string, l *lease) {
	r.Outcome = word
	if l != nil {
		m.shows(r, l)
	}
}

func (m *reference) extend(r *record, l *lease) {
	l.expiry, l.settles = m.clock+r.TTL, -1
	r.Token, r.MsLeft = l.token, r.TTL
}

// execute carries one command out at the next place of the log.
func (m *reference) execute(id int, r *record) {
	m.index++
	r.Index, r.Place, r.Clock = m.index, 0, m.clock
	l := m.live(r.Key)
	mine := l != nil && l.owner == r.Owner
	stale := mine && r.IfToken != nil && *r.IfToken != l.token
	if m.flaw == guardIgnored && stale {
		stale = false
		m.hits++
	}
	differs := l != nil && l.identity != "" && r.Identity != "" && l.identity != r.Identity
	if m.flaw == identityIgnored && differs && (r.Op == "take" && l.mode == "own") {
		differs = false
		m.hits++
	}
	switch r.Op {
	case "owner":
		r.Place = endOfEntry
		m.index--
		if r.Index = m.index; l == nil {
			r.Outcome = "NONE"
		} else {
			m.refuse(r, "LEASE", l)
		}
	case "take":
		m.take(id, r, l, differs)
	case "claim":
		m.claim(id, r, l, stale, differs)
	case "renew":
		m.renew(id, r, l, stale)
	case "heartbeat":
		m.heartbeat(r, l, stale)
	case "release":
		m.release(r, l, stale)
	}
}

func (m *reference) take(id int, r *record, l *lease, differs bool) {
	switch {
	case l != nil && l.mode == "del" && !(m.flaw == teardownEntered && m.rng.Intn(3) == 0):
		m.refuse(r, "TEARDOWN", l)
	case differs:
		m.refuse(r, "MISMATCH", l)
	default:
		m.hitIf(l != nil && l.mode == "del")
		m.grant(id, r, l, "own")
	}
}

func (m *reference) claim(id int, r *record, l *lease, stale, differs bool) {
	mode := "own"
	if r.Destroy {
		mode = "del"
	}
	if l == nil {
		since := m.tombs[r.Key].since
		left := r.Grace - (m.clock - since)
		if m.flaw == graceSkipped && left > 0 && r.Adopt {
			left = 0
			m.hits++
		}
		switch {
		case r.Destroy && r.IfToken != nil:
			r.Outcome = "LAPSED"
		case r.Adopt && left > 0:
			r.Outcome, r.GraceMs = "GRACE", left
		default:
			m.grant(id, r, nil, mode)
		}
		return
	}
	mine := l.owner == r.Owner
	switch {
	case !mine && !(m.flaw == twoOwners && l.mode == "own" && m.rng.Intn(4) == 0):
		m.refuse(r, "HELD", l)
	case !mine:
		// Both have it: the claim is granted, and the table goes on with the old owner.
		old := *l
		m.grant(id, r, nil, mode)
		m.leases[r.Key] = &old
		m.hits++
	case l.mode == "del" && !r.Destroy:
		m.refuse(r, "TEARDOWN", l)
	case stale:
		m.refuse(r, "STALE", l)
	case differs:
		m.refuse(r, "MISMATCH", l)
	case l.mode == "del":
		m.extend(r, l)
		r.Outcome, r.Before = "GRANTED", true
	default:
		m.grant(id, r, l, mode)
	}
}

func (m *reference) renew(id int, r *record, l *lease, stale bool) {
	if l == nil {
		t := m.tombs[r.Key]
		shut := !r.Reestablish || r.IfToken != nil && t.why != endNone && t.token >= *r.IfToken &&
			!(t.owner == r.Owner && t.mode == "own" && t.why != endReleased)
		if shut && m.flaw == revived && t.why == endReleased && r.IfToken != nil {
			shut = false
			m.hits++
		}
		if shut && m.flaw == renewCreates && !r.Reestablish && m.rng.Intn(3) == 0 {
			shut = false
			m.hits++
		}
		if shut {
			r.Outcome = "LAPSED"
			return
		}
		m.grant(id, r, nil, "own")
		return
	}
	switch {
	case l.owner == r.Owner && stale:
		m.refuse(r, "STALE", l)
	case l.owner != r.Owner || l.mode == "del":
		m.refuse(r, "LOST", l)
	default:
		m.extend(r, l)
		r.Outcome = "RENEWED"
		if m.flaw == tokenOfRenewal && m.rng.Intn(4) == 0 {
			l.token = m.drawn(r.Key)
			r.Token = l.token
			m.hits++
		}
		if m.flaw == renewalForgotten && m.rng.Intn(4) == 0 {
			l.expiry = m.clock
			m.hits++
		}
	}
}

func (m *reference) heartbeat(r *record, l *lease, stale bool) {
	switch {
	case l == nil:
		r.Outcome = "LAPSED"
	case l.owner == r.Owner && stale:
		m.refuse(r, "STALE", l)
	case l.owner != r.Owner || l.mode == "own":
		m.refuse(r, "LOST", l)
	default:
		m.extend(r, l)
		r.Outcome = "RENEWED"
	}
}

func (m *reference) release(r *record, l *lease, stale bool) {
	switch {
	case l != nil && l.owner != r.Owner && m.flaw == releaseOfPeer && m.rng.Intn(3) == 0:
		m.bury(r.Key, endReleased, m.clock)
		r.Outcome = "RELEASED"
		m.hits++
	case l == nil || l.owner != r.Owner:
		m.refuse(r, "NOT_OWNER", l)
	case stale:
		m.refuse(r, "STALE", l)
	default:
		if m.flaw == releaseLost && m.rng.Intn(3) == 0 {
			m.hits++
		} else {
			m.bury(r.Key, endReleased, m.clock)
		}
		r.Outcome = "RELEASED"
	}
}

// settle ends what an operation gained whose caller got no answer.
func (m *reference) settle(id int) {
	for key, l := range m.leases {
		if l.settles == id {
			m.index++
			if m.live(key) != nil {
				m.bury(key, endSettled, m.clock)
			}
			return
		}
	}
}

// --- clients

type client struct {
	free  int64 // when it asks next
	token map[string]uint64
}

// event is something that happens at a moment: a command is executed, settled, answered.
type event struct {
	at   int64
	what func()
}

// play runs so many operations of so many clients on so many keys and returns their history. In
// 1,000 operations `lost` get no answer.
func (m *reference) play(operations, clients, keys, lost int) *history {
	people := make([]client, clients)
	for i := range people {
		people[i].token = map[string]uint64{}
	}
	var events []event
	h := &history{fresh: true, retention: 600000}
	m.now = nsPerMs
	for id := 0; id < operations; id++ {
		who := 0
		for i := range people {
			if people[i].free < people[who].free {
				who = i
			}
		}
		call := people[who].free + m.rng.Int63n(8*nsPerMs)
		took := 1 + m.rng.Int63n(6*nsPerMs)
		at := call + m.rng.Int63n(took)
		r := &record{Kind: "op", Ns: "default", Client: who, Node: fmt.Sprint(who % 3), line: id + 2,
			Owner: fmt.Sprintf("o%d", who%4), Key: fmt.Sprintf("k%d", m.rng.Intn(keys)),
			Call: call, Return: call + took}
		people[who].free = r.Return + 1
		events = append(events, m.fate(id, r, at, lost, &people[who])...)
	}
	sort.SliceStable(events, func(a, b int) bool { return events[a].at < events[b].at })
	for _, e := range events {
		m.now = e.at
		if at := m.now / nsPerMs; at > m.clock && m.rng.Intn(3) > 0 {
			m.clock = at
		}
		e.what()
	}
	for _, r := range m.lines {
		if err := h.add(r); err != nil {
			panic(err)
		}
	}
	h.spread()
	return h
}

// fate decides what becomes of an operation, and when.
func (m *reference) fate(id int, r *record, at int64, lost int, who *client) []event {
	m.lines = append(m.lines, r)
	choose := event{r.Call, func() { m.choose(r, who) }}
	learn := event{r.Return, func() {
		if _, token, ok := r.sighting(); ok {
			who.token[r.Key] = token
		}
	}}
	hide := func() {
		*r = record{Kind: "op", Ns: r.Ns, Client: r.Client, Node: r.Node, Key: r.Key, Owner: r.Owner,
			Op: r.Op, TTL: r.TTL, Destroy: r.Destroy, Adopt: r.Adopt, Grace: r.Grace,
			Reestablish: r.Reestablish, IfToken: r.IfToken, Identity: r.Identity, Call: r.Call,
			Return: r.Return, Error: "UNKNOWN", line: r.line}
	}
	run := event{at, func() { m.execute(id, r) }}
	if m.rng.Intn(1000) >= lost {
		return append([]event{choose, run, learn}, m.misfortune(id, r)...)
	}
	byNode := m.flaw == settleForgotten || m.flaw == lateAfterSettle
	// Nobody hears of it. It is executed now, later or never, and settled or not.
	end := event{r.Return, hide}
	if byNode {
		return m.fateByNode(id, r, choose, run, end)
	}
	switch m.rng.Intn(5) {
	case 0:
		return []event{choose, {r.Return, func() { m.hideUndone(r) }}}
	case 1:
		return []event{choose, run, end}
	case 2:
		settled := r.Return + m.rng.Int63n(50*nsPerMs)
		return []event{choose, run, end, {settled, func() { m.settle(id) }}}
	}
	if m.rng.Intn(2) == 0 {
		return m.fateByNode(id, r, choose, run, end)
	}
	late := r.Return + m.rng.Int63n(50*nsPerMs)
	return []event{choose, {r.Return, func() { m.hideUndone(r) }}, {late, func() {
		copied := *r
		copied.Error = ""
		m.execute(id, &copied)
	}}}
}

// fateByNode: the node itself says UNKNOWN, and has settled before it serves that owner again.
func (m *reference) fateByNode(id int, r *record, choose, run, end event) []event {
	settle := event{r.Return, func() {
		r.ByNode = true
		if m.flaw == settleForgotten {
			for _, l := range m.leases {
				m.hitIf(l.settles == id)
			}
			return
		}
		m.settle(id)
	}}
	if m.flaw != lateAfterSettle {
		return []event{choose, run, end, settle}
	}
	return []event{choose, {r.Return, func() { m.hideUndone(r); r.ByNode = true }},
		{r.Return + 40*nsPerMs, func() {
			copied := *r
			copied.Error = ""
			m.execute(id, &copied)
			m.hitIf(copied.grants())
		}}}
}

func (m *reference) hideUndone(r *record) { r.Error = "UNKNOWN" }

func (m *reference) choose(r *record, who *client) {
	rng := m.rng
	verbs := []string{"take", "claim", "claim", "claim", "renew", "renew", "heartbeat", "release",
		"owner", "owner"}
	r.Op = verbs[rng.Intn(len(verbs))]
	ttls := []int64{10, 30, 100, 400}
	if r.Op != "release" && r.Op != "owner" {
		r.TTL = ttls[rng.Intn(len(ttls))]
	}
	if r.Op == "claim" {
		r.Destroy = rng.Intn(3) == 0
		if r.Adopt = rng.Intn(3) == 0; r.Adopt {
			r.Grace = []int64{0, 20, 100}[rng.Intn(3)]
		}
	}
	r.Reestablish = r.Op == "renew" && rng.Intn(2) == 0
	if (r.Op == "take" || r.Op == "claim") && rng.Intn(5) == 0 {
		r.Identity = []string{"A", "B"}[rng.Intn(2)]
	}
	guards := r.Op == "renew" || r.Op == "heartbeat" || r.Op == "release" || r.Destroy
	if token := who.token[r.Key]; guards && token != 0 && rng.Intn(3) == 0 {
		r.IfToken = &token
	}
}
