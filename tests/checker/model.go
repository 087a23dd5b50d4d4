package main

import "fmt"

// The decision table a second time, as what may follow what on one key.
//
// A state is what may be true of the key between two answers. Cluster time makes expiry exact: each
// answer carries the clock it is true of, a lease is absent once its expiry is less than the clock
// (P3: not before; P4: at once), so only what ended UNKNOWN leaves a choice. Its effect came at a
// clock between its neighbours', hence expiries and ends are ranges; its token is unknown until an
// answer shows it.

const (
	unknownWords  = 4
	unknownMax    = unknownWords * 64 // operations without an answer on one key
	statesMax     = 3000              // beyond it the key is undecided, never accepted
	settledByNone = 0
)

// end says how the last lease of an absent key ended.
type end uint8

const (
	endNone end = iota // it never had one
	endReleased
	endExpired
	endSettled
	endPurged
	endUnseen // before the history began
)

type state struct {
	held       bool
	owner      string
	mode       string // own or del
	identity   string
	token      uint64 // 0: not seen yet, larger than tokenMin
	tokenMin   uint64 // no grant from now on has a token as small as this
	endsMin    int64  // expiry
	endsMax    int64
	grantedMin int64 // earliest clock of the grant
	settles    int   // 1 + the unknown operation whose settling ends the lease

	why       end
	lastOwner string
	lastMode  string
	lastToken uint64 // 0: unknown
	sinceMin  int64  // unowned since
	sinceMax  int64

	clock int64 // not before this
	used  [unknownWords]uint64
}

func (s *state) isUsed(i int) bool { return s.used[i/64]>>(uint(i)%64)&1 == 1 }
func (s *state) use(i int)         { s.used[i/64] |= 1 << (uint(i) % 64) }

// forgetUnlooked makes states equal that differ only in what nothing will look at.
func (s *state) forgetUnlooked(looked looks) {
	switch {
	case s.held:
	case looked == looksAtNothing:
		s.forgetEnd()
	case looked == looksAtTime:
		s.why, s.lastOwner, s.lastMode, s.lastToken = endNone, "", "", 0
	}
}

func (s *state) forgetEnd() {
	s.why, s.lastOwner, s.lastMode, s.lastToken, s.sinceMin, s.sinceMax = endNone, "", "", 0, 0, 0
}

// input is one answered operation together with what it has to reckon with.
//
// A read carries the clock of the leader's read round, which may be ahead of the log by what is still
// under way: a lease that it shows has not ended by that clock, but what it finds absent had ended by
// the clock of its place in the log, which is at most that of the next command.
type input struct {
	*record
	clockMax  int64 // the log's clock at this place is at most that
	pending   []int // unknown operations that may take effect before it
	voids     []int // those that are settled by now
	lateness  []int // unknown renewals that may have moved the expiry
	looked    looks // what of the end of the last lease is looked at after it
	retention int64
	unknowns  []*unknown
}

// unknown is an operation whose fate its caller does not know.
type unknown struct {
	*record
	clockMax int64 // no effect after this clock
}

// mayRenew says whether it may have renewed that lease without drawing a token.
func (u *unknown) mayRenew(s *state) bool {
	if s.owner != u.Owner || s.grantedMin > u.clockMax ||
		u.IfToken != nil && s.token != 0 && *u.IfToken != s.token {
		return false
	}
	switch u.Op {
	case "renew", "renew_all":
		return s.mode == "own"
	case "heartbeat":
		return s.mode == "del"
	}
	return u.Op == "claim" && u.Destroy && s.mode == "del"
}

// ends widens the range of the expiry by what unknown renewals may have done up to the clock.
func (s *state) ends(in *input, clock int64) (int64, int64) {
	least, most := s.endsMin, s.endsMax
	for _, i := range in.lateness {
		u := in.unknowns[i]
		if !u.mayRenew(s) {
			continue
		}
		least = min(least, s.grantedMin+u.TTL)
		most = max(most, min(clock, u.clockMax)+u.TTL)
	}
	return least, most
}

// showsEnd narrows the expiry to what an answer shows, or says that it cannot be.
func (s *state) showsEnd(in *input, at int64) bool {
	fits := s.endsMin <= at && at <= s.endsMax
	for _, i := range in.lateness {
		u := in.unknowns[i]
		fits = fits || u.mayRenew(s) && s.grantedMin+u.TTL <= at &&
			at <= min(in.Clock, u.clockMax)+u.TTL
	}
	s.endsMin, s.endsMax = at, at
	return fits && at >= in.Clock
}

// showsToken narrows the token to what an answer shows.
func (s *state) showsToken(token uint64) bool {
	if s.token == 0 && token > s.tokenMin {
		s.token, s.tokenMin = token, token
	}
	return s.token == token && token != 0
}

// stays is the state when the lease was live at the clock of the answer; whose, if it is shown.
func (s state) stays(in *input) (state, bool) {
	if !s.held {
		return s, false
	}
	if h := in.Holder; h != nil {
		if h.Owner != s.owner || h.State != s.mode || !s.showsToken(h.Token) {
			return s, false
		}
		return s, s.showsEnd(in, in.Clock+h.MsLeft)
	}
	_, most := s.ends(in, in.Clock)
	return s, most >= in.Clock
}

// lapses is the state when the lease, if any, had expired before a clock of at most `clock`.
func (s state) lapses(in *input, clock int64) (state, bool) {
	if !s.held {
		return s, true
	}
	least, most := s.ends(in, clock)
	if least >= clock {
		return s, false
	}
	s.clock = max(s.clock, least+1)
	s.ended(endExpired, least, min(most, clock-1))
	return s, true
}

// ended turns the lease into the memory of it.
func (s *state) ended(why end, sinceMin, sinceMax int64) {
	s.why, s.lastOwner, s.lastMode, s.lastToken = why, s.owner, s.mode, s.token
	if why == endSettled || why == endPurged { // all that is asked of these is when
		s.lastOwner, s.lastMode, s.lastToken = "", "", 0
	}
	s.sinceMin, s.sinceMax = sinceMin, sinceMax
	s.held, s.owner, s.mode, s.identity, s.token, s.settles = false, "", "", "", 0, settledByNone
	s.endsMin, s.endsMax, s.grantedMin = 0, 0, 0
}

// granted writes the lease anew; a token of 0 is one that nobody has seen.
func (s *state) granted(r *record, token uint64, clockMax int64) {
	if r.Identity != "" {
		s.identity = r.Identity
	}
	s.held, s.owner, s.mode, s.token, s.settles = true, r.Owner, "own", token, settledByNone
	if r.Op == "claim" && r.Destroy {
		s.mode = "del"
	}
	s.tokenMin = max(s.tokenMin, token)
	s.endsMin, s.endsMax, s.grantedMin = s.clock+r.TTL, clockMax+r.TTL, s.clock
	s.forgetEnd()
}

func (s *state) mismatches(r *record) bool {
	return s.identity != "" && r.Identity != "" && s.identity != r.Identity
}

// guarded is how a guard bears on the reviving of an absent lease.
type guarded uint8

const (
	guardOpen   guarded = iota // re-established
	guardShut                  // LAPSED
	guardEither                // the contract leaves it open, or how the lease ended is not known
)

func (s *state) guard(in *input) guarded {
	if in.IfToken == nil {
		return guardOpen
	}
	wanted := *in.IfToken
	switch {
	case s.why == endSettled || s.why == endPurged || s.why == endUnseen ||
		s.clock-s.sinceMin >= in.retention:
		return guardEither
	case s.why == endNone:
		return guardOpen
	case s.why == endExpired && s.lastOwner == in.Owner && s.lastMode == "own":
		return guardOpen
	case s.lastToken == 0:
		return guardEither
	case s.lastToken < wanted:
		return guardOpen
	case s.lastToken == wanted && s.lastMode == "del" && s.why == endExpired:
		return guardEither
	}
	return guardShut
}

// answer is the states after an answer, from one state before it. None: it cannot have been.
func (s state) answer(in *input) []state {
	if in.Clock < s.clock {
		return nil
	}
	if in.Op != "owner" {
		s.clock = in.Clock
	}
	var after []state
	if live, ok := s.stays(in); ok && live.answerLive(in) {
		after = append(after, live)
	}
	if in.Holder == nil {
		if gone, ok := s.lapses(in, in.clockMax); ok && gone.answerAbsent(in) {
			after = append(after, gone)
		}
	}
	return after
}

// newGrant checks and writes a grant that draws a token.
func (s *state) newGrant(in *input) bool {
	if in.Token <= s.tokenMin || in.MsLeft != in.TTL {
		return false
	}
	s.granted(in.record, in.Token, s.clock)
	return true
}

// keeps checks and writes a renewal.
func (s *state) keeps(in *input) bool {
	if !s.showsToken(in.Token) || in.MsLeft != in.TTL {
		return false
	}
	s.endsMin, s.endsMax, s.settles = s.clock+in.TTL, s.clock+in.TTL, settledByNone
	return true
}

// answerLive is the decision table where the key has a lease.
func (s *state) answerLive(in *input) bool {
	mine := s.owner == in.Owner
	switch in.Op {
	case "owner":
		return in.Outcome == "LEASE" && in.Holder != nil
	case "release_all":
		if mine && s.mode == "own" {
			s.ended(endReleased, s.clock, s.clock)
		}
		return true
	case "renew_all":
		if mine && s.mode == "own" {
			s.endsMin, s.endsMax, s.settles = s.clock+in.TTL, s.clock+in.TTL, settledByNone
		}
		return true
	case "purge":
		s.ended(endPurged, s.clock, s.clock)
		return true
	}
	if refusal := s.refusal(in); refusal != "" {
		return in.Outcome == refusal && in.Holder != nil
	}
	if in.IfToken != nil && !s.showsToken(*in.IfToken) {
		return false
	}
	switch in.Op {
	case "take":
		names := (in.Holder != nil) == !mine
		return in.Outcome == "GRANTED" && in.Before == mine && names && s.newGrant(in)
	case "claim":
		if in.Outcome != "GRANTED" || !in.Before || in.Holder != nil {
			return false
		}
		if s.mode == "del" {
			return s.keeps(in)
		}
		return s.newGrant(in)
	case "renew", "heartbeat":
		return in.Outcome == "RENEWED" && in.Holder == nil && s.keeps(in)
	}
	if in.Outcome != "RELEASED" || in.Holder != nil { // release
		return false
	}
	s.ended(endReleased, s.clock, s.clock)
	return true
}

// refusal is the word with which a live lease refuses the operation, or "". Where the guard depends
// on a token that was not seen yet, the answer has shown it already or is none of these words.
func (s *state) refusal(in *input) string {
	mine := s.owner == in.Owner
	stale := mine && in.IfToken != nil && s.token != 0 && *in.IfToken != s.token
	switch in.Op {
	case "take":
		if s.mode == "del" {
			return "TEARDOWN"
		}
	case "claim":
		switch {
		case !mine:
			return "HELD"
		case s.mode == "del" && !in.Destroy:
			return "TEARDOWN"
		}
	case "renew":
		if !mine || s.mode == "del" && !stale {
			return "LOST"
		}
	case "heartbeat":
		if !mine || s.mode == "own" && !stale {
			return "LOST"
		}
	case "release":
		if !mine {
			return "NOT_OWNER"
		}
	}
	switch {
	case stale:
		return "STALE"
	case (in.Op == "take" || in.Op == "claim") && s.mismatches(in.record):
		return "MISMATCH"
	}
	return ""
}

// answerAbsent is its column for a key without a lease.
func (s *state) answerAbsent(in *input) bool {
	switch in.Op {
	case "owner":
		return in.Outcome == "NONE"
	case "release_all", "renew_all":
		return true
	case "purge":
		s.why, s.sinceMin, s.sinceMax = endPurged, s.clock, s.clock
		return true
	case "release":
		return in.Outcome == "NOT_OWNER"
	case "heartbeat":
		return in.Outcome == "LAPSED"
	case "renew":
		if !in.Reestablish {
			return in.Outcome == "LAPSED"
		}
		guard := s.guard(in)
		if in.Outcome == "LAPSED" {
			return guard != guardOpen
		}
		return in.Outcome == "REESTABLISHED" && guard != guardShut && s.newGrant(in)
	case "claim":
		if in.Destroy && in.IfToken != nil {
			return in.Outcome == "LAPSED"
		}
		if in.Adopt {
			return s.answerAdopt(in)
		}
	}
	return in.Outcome == "GRANTED" && !in.Before && s.newGrant(in)
}

func (s *state) answerAdopt(in *input) bool {
	if in.Outcome == "GRANTED" {
		return !in.Before && s.clock-s.sinceMin >= in.Grace && s.newGrant(in)
	}
	since := s.clock - in.Grace + in.GraceMs
	if in.Outcome != "GRACE" || in.GraceMs <= 0 || since < s.sinceMin || since > s.sinceMax {
		return false
	}
	s.sinceMin, s.sinceMax = since, since
	return true
}

// effect is what an unknown operation may make of the key before an answer. That it
// did nothing is no effect: it may then do it later.
func (s state) effect(in *input, i int) []state {
	u := in.unknowns[i]
	clockMax := min(in.clockMax, u.clockMax)
	if clockMax < s.clock {
		return nil
	}
	s.use(i)
	var after []state
	if live := s; s.held {
		if _, most := s.ends(in, clockMax); most >= s.clock && live.effectLive(u.record, i, clockMax) {
			after = append(after, live)
		}
	}
	if gone, ok := s.lapses(in, clockMax); ok && gone.effectAbsent(in, i, clockMax) {
		after = append(after, gone)
	}
	return after
}

func (s *state) effectLive(r *record, i int, clockMax int64) bool {
	mine := s.owner == r.Owner
	if r.IfToken != nil && !(mine && s.showsToken(*r.IfToken)) {
		return false
	}
	switch r.Op {
	case "take":
		if s.mode == "del" || s.mismatches(r) {
			return false
		}
	case "claim":
		// Destroy of one's own marker is a renewal, which lateness covers.
		if !mine || s.mode == "del" || s.mismatches(r) {
			return false
		}
	case "release":
		if !mine {
			return false
		}
		s.ended(endReleased, s.clock, clockMax)
		return true
	case "release_all":
		if !mine || s.mode == "del" {
			return false
		}
		s.ended(endReleased, s.clock, clockMax)
		return true
	case "purge":
		s.ended(endPurged, s.clock, clockMax)
		return true
	default: // renewals: lateness
		return false
	}
	s.granted(r, 0, clockMax)
	if !mine {
		s.settles = i + 1
	}
	return true
}

func (s *state) effectAbsent(in *input, i int, clockMax int64) bool {
	r := in.unknowns[i].record
	switch r.Op {
	case "take":
	case "claim":
		if r.Destroy && r.IfToken != nil {
			return false
		}
		if r.Adopt {
			if clockMax-s.sinceMin < r.Grace {
				return false
			}
			s.clock = max(s.clock, s.sinceMin+r.Grace)
		}
	case "renew":
		asked := input{record: r, retention: in.retention}
		if !r.Reestablish || s.guard(&asked) == guardShut {
			return false
		}
		s.granted(r, 0, clockMax)
		return true
	case "purge":
		s.why, s.sinceMin, s.sinceMax = endPurged, s.clock, clockMax
		return true
	default:
		return false
	}
	s.granted(r, 0, clockMax)
	s.settles = i + 1
	return true
}

// settled is the state after the settling of the operation that gained the lease.
func (s state) settled(in *input) state {
	s.ended(endSettled, s.clock, in.clockMax)
	return s
}

func (s *state) String() string {
	if !s.held {
		ends := [...]string{"never held", "released", "expired", "settled", "purged",
			"not seen before"}
		return fmt.Sprintf("absent, %s, unowned since %d..%d, tokens > %d, clock >= %d",
			ends[s.why], s.sinceMin, s.sinceMax, s.tokenMin, s.clock)
	}
	token := fmt.Sprint(s.token)
	if s.token == 0 {
		token = fmt.Sprintf("unknown > %d", s.tokenMin)
	}
	return fmt.Sprintf("%s %s, token %s, expiry %d..%d, clock >= %d", s.owner, s.mode, token,
		s.endsMin, s.endsMax, s.clock)
}
