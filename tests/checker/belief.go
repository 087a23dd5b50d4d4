package main

import "sort"

// The belief check: no two owners ever both believe to have a key, but for the loser of a `take`
// until it is told.

// checkBelief compares every belief with every other one of its key, with each grant, and with what
// its holder had been told.
func checkBelief(h *history) []complaint {
	beliefs := map[string][]*record{}
	for _, b := range h.beliefs {
		beliefs[nameOf(b)] = append(beliefs[nameOf(b)], b)
	}
	// A grant is a belief of its owner at the moment at which it was told.
	moments := map[string][]*record{}
	takes := map[string][]*record{}
	for _, r := range h.answered {
		if r.grants() {
			moments[nameOf(r)] = append(moments[nameOf(r)], &record{Kind: "grant", Ns: r.Ns, Key: r.Key,
				Owner: r.Owner, Token: r.Token, From: r.Return, Until: r.Return + 1, line: r.line})
		}
		if r.Op == "take" && r.Outcome == "GRANTED" {
			takes[nameOf(r)] = append(takes[nameOf(r)], r)
		}
	}
	for _, r := range h.unknown {
		if r.Op == "take" {
			takes[nameOf(r)] = append(takes[nameOf(r)], r)
		}
	}
	var found []complaint
	for key, list := range beliefs {
		found = append(found, overlaps(key, append(list, moments[key]...), takes[key])...)
	}
	return append(found, checkTold(h, beliefs)...)
}

// overlaps finds pairs of different owners that believed at one time without a `take` to excuse it.
func overlaps(key string, list, takes []*record) []complaint {
	sort.SliceStable(list, func(a, b int) bool { return list[a].From < list[b].From })
	var found []complaint
	var open []*record
	for _, b := range list {
		kept := open[:0]
		for _, a := range open {
			if a.Until <= b.From {
				continue
			}
			kept = append(kept, a)
			early, late := a, b
			if early.Token > late.Token {
				early, late = late, early
			}
			// A grant may have been over before its answer came: alone it is no belief.
			if a.Owner == b.Owner || early.Kind == "grant" ||
				excused(early, late, b.From, takes) {
				continue
			}
			found = append(found, say("belief", "lines %d and %d: %s (token %d) and %s (token %d) both "+
				"believe to have %s at %d ns", a.line, b.line, a.Owner, a.Token, b.Owner, b.Token, key,
				b.From))
		}
		open = append(kept, b)
	}
	return found
}

// excused says whether a `take` of somebody else came between the two beliefs.
func excused(early, late *record, from int64, takes []*record) bool {
	for _, t := range takes {
		if t.Owner == early.Owner {
			continue
		}
		if t.Error != "" && t.Call < from || t.Token > early.Token && t.Token <= late.Token {
			return true
		}
	}
	return false
}

// checkTold: who was told that the key is not his any more stops believing at that moment.
func checkTold(h *history, beliefs map[string][]*record) []complaint {
	var found []complaint
	check := func(key, owner string, token uint64, at int64, line int) {
		for _, b := range beliefs[key] {
			if b.Owner == owner && b.Token == token && b.Until > at {
				found = append(found, say("belief", "lines %d and %d: %s believes to have %s (token %d) "+
					"until %d ns but was told otherwise at %d ns", line, b.line, owner, key, token,
					b.Until, at))
			}
		}
	}
	for _, t := range h.told {
		check(nameOf(t), t.Owner, t.Token, t.At, t.line)
	}
	for _, r := range h.answered {
		lost := map[string]bool{"HELD": true, "LOST": true, "LAPSED": true, "NOT_OWNER": true}
		if !lost[r.Outcome] || r.Holder == nil || r.Holder.Owner == r.Owner {
			continue
		}
		// The answer shows a peer with a larger token: all that the owner had before it is gone.
		for _, b := range beliefs[nameOf(r)] {
			if b.Owner == r.Owner && b.Token < r.Holder.Token && b.Until > r.Return {
				check(nameOf(r), r.Owner, b.Token, r.Return, r.line)
			}
		}
	}
	return found
}
