package main

import (
	"fmt"
	"math"
	"sort"
)

// What needs no search: each of these holds for the whole log at once.

// complaint is one broken promise, with the lines that show it.
type complaint struct {
	promise string
	text    string
}

func say(promise, format string, args ...interface{}) complaint {
	return complaint{promise, fmt.Sprintf(format, args...)}
}

// hasPositions says whether every answer carries its place in the log. Index 0 is one for a stale
// read: of a node that was just started and has nothing applied yet.
func hasPositions(h *history) bool {
	for _, r := range h.answered {
		if r.Index == 0 && !r.Stale {
			return false
		}
	}
	return true
}

func checkDirect(h *history) []complaint {
	found := checkOneHolderPerToken(h)
	if !hasPositions(h) {
		return found
	}
	ordered := append([]*record{}, h.answered...)
	sort.SliceStable(ordered, func(a, b int) bool { return isBefore(ordered[a], ordered[b]) })
	found = append(found, checkTokensGrow(ordered)...)
	found = append(found, checkClockGrows(ordered)...)
	found = append(found, checkNothingOlderIsSeen(ordered)...)
	found = append(found, checkOneWritePerPlace(ordered)...)
	return append(found, checkRealTime(h)...)
}

// checkOneHolderPerToken: a token names one owner of one key, for ever (P1, P5).
func checkOneHolderPerToken(h *history) []complaint {
	type whose struct {
		key, owner string
		line       int
	}
	var found []complaint
	seen := map[uint64]whose{}
	granted := map[uint64]int{}
	for _, r := range h.answered {
		if r.grants() {
			if line, ok := granted[r.Token]; ok {
				found = append(found, say("P5", "lines %d and %d: token %d was granted twice", line,
					r.line, r.Token))
			}
			granted[r.Token] = r.line
		}
		sights := map[uint64]string{}
		if owner, token, ok := r.sighting(); ok {
			sights[token] = owner
		}
		if r.Holder != nil {
			sights[r.Holder.Token] = r.Holder.Owner
		}
		for token, owner := range sights {
			was, ok := seen[token]
			if ok && (was.key != nameOf(r) || was.owner != owner) {
				found = append(found, say("P1", "lines %d and %d: token %d is of %s on %s and of %s on %s",
					was.line, r.line, token, was.owner, was.key, owner, nameOf(r)))
			}
			if !ok {
				seen[token] = whose{nameOf(r), owner, r.line}
			}
		}
	}
	return found
}

// checkTokensGrow: tokens come from one counter, so they grow along the whole log (P5).
func checkTokensGrow(ordered []*record) []complaint {
	var found []complaint
	var last *record
	var earlier *record // the largest of a smaller position
	for _, r := range ordered {
		if !r.grants() || r.Stale {
			continue
		}
		if last != nil && isBefore(last, r) && (earlier == nil || last.Token > earlier.Token) {
			earlier = last
		}
		if earlier != nil && isBefore(earlier, r) && r.Token <= earlier.Token {
			found = append(found, say("P5", "lines %d and %d: %s on %s after %s on %s", earlier.line,
				r.line, r, nameOf(r), earlier, nameOf(earlier)))
		}
		if last == nil || isBefore(last, r) || r.Token > last.Token {
			last = r
		}
	}
	return found
}

// checkClockGrows: the cluster clock never goes back along the log (section 5). A read's may be ahead
// of it: it is that of the leader's read round.
func checkClockGrows(ordered []*record) []complaint {
	var found []complaint
	var earlier *record
	for _, r := range ordered {
		if earlier != nil && isBefore(earlier, r) && r.Clock < earlier.Clock {
			found = append(found, say("clock", "lines %d and %d: clock %d at %d/%d, then %d at %d/%d",
				earlier.line, r.line, earlier.Clock, earlier.Index, earlier.Place, r.Clock, r.Index,
				r.Place))
		}
		if r.Op != "owner" && (earlier == nil || r.Clock > earlier.Clock) {
			earlier = r
		}
	}
	return found
}

// checkNothingOlderIsSeen: along the log no lease of a key is seen after one with a larger token
// was (P1, P5, P6).
func checkNothingOlderIsSeen(ordered []*record) []complaint {
	var found []complaint
	largest := map[string]uint64{}
	line := map[string]int{}
	for _, r := range ordered {
		_, token, ok := r.sighting()
		if !ok {
			continue
		}
		key := nameOf(r)
		if token < largest[key] {
			found = append(found, say("P1", "lines %d and %d: %s shows token %d of %s after %d",
				line[key], r.line, r, token, key, largest[key]))
			continue
		}
		largest[key], line[key] = token, r.line
	}
	return found
}

// checkOneWritePerPlace: two commands never stand at one place of the log (P7).
func checkOneWritePerPlace(ordered []*record) []complaint {
	var found []complaint
	type place struct {
		key          string
		index, place uint64
	}
	seen := map[place]*record{}
	for _, r := range ordered {
		if r.Op == "owner" {
			continue
		}
		at := place{nameOf(r), r.Index, r.Place}
		if other := seen[at]; other != nil {
			found = append(found, say("P7", "lines %d and %d stand at one place: %s; %s", other.line,
				r.line, other, r))
		}
		seen[at] = r
	}
	return found
}

// checkRealTime: what was answered before something was asked stands before it in the log (P6).
func checkRealTime(h *history) []complaint {
	var found []complaint
	asked := append([]*record{}, h.answered...)
	sort.SliceStable(asked, func(a, b int) bool { return asked[a].Call < asked[b].Call })
	over := append([]*record{}, h.answered...)
	sort.SliceStable(over, func(a, b int) bool { return over[a].Return < over[b].Return })
	var last *record // the highest position that was answered so far
	next := 0
	for _, r := range asked {
		for ; next < len(over) && over[next].Return < r.Call; next++ {
			if last == nil || isBefore(last, over[next]) {
				last = over[next]
			}
		}
		if last != nil && !r.Stale && isBefore(r, last) {
			found = append(found, say("P6", "lines %d and %d: %s on %s was asked after %s on %s had "+
				"been answered", last.line, r.line, r, nameOf(r), last, nameOf(last)))
		}
	}
	return found
}

// logOrder is what one key needs to know of the whole log.
type logOrder struct {
	commands  []*record // all but reads, along the log
	settledBy map[*record]*record
}

func logOf(h *history) *logOrder {
	log := &logOrder{settledBy: settledBy(h)}
	for _, r := range h.answered {
		if r.Op != "owner" {
			log.commands = append(log.commands, r)
		}
	}
	sort.SliceStable(log.commands, func(a, b int) bool {
		return isBefore(log.commands[a], log.commands[b])
	})
	return log
}

// clockAfter is the clock of the first command after that place.
func (log *logOrder) clockAfter(r *record) int64 {
	at := sort.Search(len(log.commands), func(i int) bool { return isBefore(r, log.commands[i]) })
	if at == len(log.commands) {
		return math.MaxInt64 / 2
	}
	return log.commands[at].Clock
}

// settledBy finds for each operation that its node ended as UNKNOWN the first answer in the log that
// the node gives only after settling it: whatever its owner asked next on it, and any read of the
// key (section 6). A node that was started again has another name.
func settledBy(h *history) map[*record]*record {
	if !hasPositions(h) {
		return nil
	}
	type caller struct{ node, owner, ns string }
	type looked struct{ node, key string }
	byOwner := map[caller][]*record{}
	reads := map[looked][]*record{}
	for _, r := range h.answered {
		if r.Op != "owner" {
			at := caller{r.Node, r.Owner, r.Ns}
			byOwner[at] = append(byOwner[at], r)
		} else if !r.Stale {
			at := looked{r.Node, nameOf(r)}
			reads[at] = append(reads[at], r)
		}
	}
	first := map[*record]*record{}
	for _, u := range h.unknown {
		if !u.ByNode || u.Node == "" {
			continue
		}
		for _, list := range [][]*record{byOwner[caller{u.Node, u.Owner, u.Ns}],
			reads[looked{u.Node, nameOf(u)}]} {
			for _, r := range list {
				if r.Call > u.Return && (first[u] == nil || isBefore(r, first[u])) {
					first[u] = r
				}
			}
		}
	}
	return first
}
