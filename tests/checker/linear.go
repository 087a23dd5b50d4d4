package main

import (
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// ordering is how the answers of a key are put in order before the search.
type ordering int

const (
	byPosition ordering = iota // as the log positions say, which every answer carries
	byTime                     // as calls, returns, clocks and tokens allow: positions are not used
)

// keyHistory is what happened to one key.
type keyHistory struct {
	name      string
	fresh     bool
	retention int64
	inputs    []*input
	unknowns  []*unknown
	ops       []porcupine.Operation
	overflow  bool
}

// verdict is what was found on one key.
type verdict struct {
	result porcupine.CheckResult
	reason string
}

func nameOf(r *record) string { return r.Ns + "/" + r.Key }

// keysOf cuts a history into its keys.
func keysOf(h *history) []*keyHistory {
	byName := map[string]*keyHistory{}
	at := func(r *record) *keyHistory {
		k := byName[nameOf(r)]
		if k == nil {
			k = &keyHistory{name: nameOf(r), fresh: h.fresh, retention: h.retention}
			byName[k.name] = k
		}
		return k
	}
	for _, r := range h.unknown {
		k := at(r)
		k.unknowns = append(k.unknowns, &unknown{r, math.MaxInt64 / 2})
	}
	for _, r := range h.answered {
		k := at(r)
		k.inputs = append(k.inputs, &input{record: r, retention: h.retention})
	}
	keys := make([]*keyHistory, 0, len(byName))
	for _, k := range byName {
		sort.SliceStable(k.unknowns, func(a, b int) bool {
			return k.unknowns[a].Call < k.unknowns[b].Call
		})
		for _, in := range k.inputs {
			in.unknowns = k.unknowns
		}
		keys = append(keys, k)
	}
	sort.Slice(keys, func(a, b int) bool { return keys[a].name < keys[b].name })
	return keys
}

// prepare puts the answers in order and hangs to each what unknown operations may have done.
func (k *keyHistory) prepare(order ordering, log *logOrder) {
	windows := make([][2]int64, len(k.inputs))
	if order == byPosition {
		sort.SliceStable(k.inputs, func(a, b int) bool { return comesFirst(k.inputs[a], k.inputs[b]) })
		k.boundVoids(log.settledBy)
		for i := range k.inputs {
			windows[i] = [2]int64{int64(2 * i), int64(2*i + 1)}
		}
	} else {
		k.inputs = withoutStale(k.inputs)
		windows = tighten(k.inputs)
	}
	for _, in := range k.inputs {
		in.clockMax = in.Clock
		if in.Op == "owner" && order == byPosition {
			in.clockMax = min(in.Clock, log.clockAfter(in.record))
		}
	}
	k.hangUnknowns(order, windows)
	k.markBlind(order)
	k.ops = k.ops[:0]
	for i, in := range k.inputs {
		k.ops = append(k.ops, porcupine.Operation{ClientId: in.Client, Input: in, Output: in.record,
			Call: windows[i][0], Return: windows[i][1]})
	}
}

// comesFirst is the order of the log; reads of one index follow the clocks that they saw.
func comesFirst(a, b *input) bool {
	if isBefore(a.record, b.record) || isBefore(b.record, a.record) {
		return isBefore(a.record, b.record)
	}
	return a.Clock < b.Clock || a.Clock == b.Clock && a.Call < b.Call
}

func withoutStale(inputs []*input) []*input {
	var kept []*input
	for _, in := range inputs {
		if !in.Stale {
			kept = append(kept, in)
		}
	}
	return kept
}

// tighten narrows each call and return to what clocks and tokens, which only grow, allow.
func tighten(inputs []*input) [][2]int64 {
	windows := make([][2]int64, len(inputs))
	for i, in := range inputs {
		windows[i] = [2]int64{in.Call, in.Return}
	}
	clock := func(i int) (uint64, bool) {
		return uint64(inputs[i].Clock), inputs[i].Op != "owner"
	}
	token := func(i int) (uint64, bool) {
		_, token, ok := inputs[i].sighting()
		grant := inputs[i].Outcome == "GRANTED" && !inputs[i].Destroy
		if grant && inputs[i].Op == "take" && inputs[i].Token != 0 {
			token = inputs[i].Token
		}
		if grant || inputs[i].Outcome == "REESTABLISHED" {
			return token * 2, ok
		}
		return token*2 + 1, ok
	}
	for round := 0; round < 2; round++ {
		narrow(windows, clock)
		narrow(windows, token)
	}
	return windows
}

// narrow lets nothing with a larger rank end before something with a smaller one has begun.
func narrow(windows [][2]int64, rank func(i int) (uint64, bool)) {
	var order []int
	ranks := make([]uint64, len(windows))
	for i := range windows {
		if value, ok := rank(i); ok {
			ranks[i] = value
			order = append(order, i)
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return ranks[order[a]] < ranks[order[b]] })
	begun := int64(math.MinInt64)
	for from := 0; from < len(order); {
		next, to := begun, from
		for ; to < len(order) && ranks[order[to]] == ranks[order[from]]; to++ {
			w := &windows[order[to]]
			w[0] = max(w[0], begun)
			next = max(next, w[0])
		}
		begun, from = next, to
	}
	over := int64(math.MaxInt64)
	for to := len(order); to > 0; {
		next, from := over, to
		for ; from > 0 && ranks[order[from-1]] == ranks[order[to-1]]; from-- {
			w := &windows[order[from-1]]
			w[1] = min(w[1], over)
			next = min(next, w[1])
		}
		over, to = next, from
	}
}

// boundVoids notes where in the order an unknown operation is settled, and up to which clock it may
// have had an effect.
func (k *keyHistory) boundVoids(voidAt map[*record]*record) {
	for i, u := range k.unknowns {
		after, ok := voidAt[u.record]
		if !ok {
			continue
		}
		u.clockMax = after.Clock
		at := sort.Search(len(k.inputs), func(j int) bool {
			return !isBefore(k.inputs[j].record, after)
		})
		if at < len(k.inputs) {
			k.inputs[at].voids = append(k.inputs[at].voids, i)
		}
	}
}

// mayChange says whether it may do more than move an expiry.
func (u *unknown) mayChange() bool {
	switch u.Op {
	case "heartbeat", "renew_all":
		return false
	case "renew":
		return u.Reestablish
	}
	return true
}

// mayProlong says whether it may move an expiry and keep the token.
func (u *unknown) mayProlong() bool {
	switch u.Op {
	case "renew", "heartbeat", "renew_all":
		return true
	}
	return u.Op == "claim" && u.Destroy
}

// hangUnknowns gives each answer the unknown operations that were asked before it had to be over.
func (k *keyHistory) hangUnknowns(order ordering, windows [][2]int64) {
	over := int64(math.MaxInt64)
	voided := make([]int, len(k.unknowns))
	for i := range voided {
		voided[i] = math.MaxInt
	}
	for i, in := range k.inputs {
		for _, u := range in.voids {
			voided[u] = i
		}
	}
	for i := len(k.inputs) - 1; i >= 0; i-- {
		in := k.inputs[i]
		limit := windows[i][1]
		if order == byPosition {
			if !in.Stale { // a stale read may come long after what it shows
				over = min(over, in.Return)
			}
			limit = over
		}
		in.pending, in.lateness = nil, nil
		for j, u := range k.unknowns {
			if u.Call > limit {
				break
			}
			if u.mayChange() && i <= voided[j] {
				in.pending = append(in.pending, j)
			}
			if u.mayProlong() {
				in.lateness = append(in.lateness, j)
			}
		}
	}
}

// markBlind finds the answers after which nothing looks at how the last lease ended.
func (k *keyHistory) markBlind(order ordering) {
	always := looksAtNothing
	for _, u := range k.unknowns {
		always |= looksBack(u.record)
	}
	if order == byTime {
		for _, in := range k.inputs {
			always |= looksBack(in.record)
		}
	}
	later := always
	for i := len(k.inputs) - 1; i >= 0; i-- {
		in := k.inputs[i]
		in.looked = later
		if in.Outcome == "GRANTED" || in.Outcome == "REESTABLISHED" {
			later = always // what was before it is gone, once it has looked itself
		}
		later |= looksBack(in.record)
	}
}

// looks is what of the end of the last lease is looked at.
type looks uint8

const (
	looksAtNothing looks = 0
	looksAtTime    looks = 1 // adopt: since when the key is unowned
	looksAtWhose   looks = 2 // a guard: whose it was, why it ended, its token
)

func looksBack(r *record) looks {
	switch {
	case r.Adopt:
		return looksAtTime
	case r.Reestablish && r.IfToken != nil:
		return looksAtTime | looksAtWhose
	}
	return looksAtNothing
}

// --- the state of the search: all states of the key that the answers so far allow

type stateSet struct{ states []state }

// add keeps only states that allow something that no other one of the set allows.
func (set *stateSet) add(s state) bool {
	for i := range set.states {
		if set.states[i].allows(&s) {
			return false
		}
	}
	for i := range set.states {
		if joined, ok := set.states[i].joins(s); ok {
			s = joined // and the part goes below
		}
	}
	kept := set.states[:0]
	for i := range set.states {
		if !s.allows(&set.states[i]) {
			kept = append(kept, set.states[i])
		}
	}
	set.states = append(kept, s)
	return true
}

// allows says whether whatever may follow b may also follow a: they differ at most in that a leaves
// wider ranges and has used up fewer unknown operations.
func (a *state) allows(b *state) bool {
	if a.held != b.held || a.token != b.token || a.settles != b.settles ||
		a.tokenMin > b.tokenMin || a.clock > b.clock || a.grantedMin > b.grantedMin ||
		a.endsMin > b.endsMin || a.endsMax < b.endsMax ||
		a.sinceMin > b.sinceMin || a.sinceMax < b.sinceMax || !covers(a.used, b.used) {
		return false
	}
	return a.why == b.why && a.lastToken == b.lastToken && a.owner == b.owner && a.mode == b.mode &&
		a.identity == b.identity && a.lastOwner == b.lastOwner && a.lastMode == b.lastMode
}

// joins makes one state of two whose key is unowned since one range or the one next to it.
func (a *state) joins(b state) (state, bool) {
	if a.held || b.held || a.sinceMin > b.sinceMax+1 || b.sinceMin > a.sinceMax+1 {
		return b, false
	}
	least, most := min(a.sinceMin, b.sinceMin), max(a.sinceMax, b.sinceMax)
	b.sinceMin, b.sinceMax = a.sinceMin, a.sinceMax
	same := *a == b
	b.sinceMin, b.sinceMax = least, most
	return b, same
}

func covers(a, b [unknownWords]uint64) bool {
	for i := range a {
		if a[i]&^b[i] != 0 {
			return false
		}
	}
	return true
}

func (set *stateSet) equals(other *stateSet) bool {
	if len(set.states) != len(other.states) {
		return false
	}
	for _, s := range set.states {
		found := false
		for _, o := range other.states {
			found = found || s == o
		}
		if !found {
			return false
		}
	}
	return true
}

// before adds what unknown operations and their settling may have done before the answer.
func (k *keyHistory) before(set *stateSet, in *input) *stateSet {
	all := &stateSet{}
	queue := append([]state{}, set.states...)
	for _, s := range queue {
		all.add(s)
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		var next []state
		if s.settles != settledByNone {
			next = append(next, s.settled(in))
		}
		for _, i := range in.pending {
			if !s.isUsed(i) {
				next = append(next, s.effect(in, i)...)
			}
		}
		for _, n := range next {
			n.forgetUnlooked(in.looked | looksBack(in.record))
			if all.add(n) {
				queue = append(queue, n)
			}
		}
		if len(all.states) > statesMax {
			k.overflow = true
			return &stateSet{}
		}
	}
	return all
}

// step is one answer in the search.
func (k *keyHistory) step(set *stateSet, in *input) *stateSet {
	after := &stateSet{}
	for _, s := range k.before(set, in).states {
		if k.isOverdue(&s, in) {
			continue
		}
		for _, i := range in.voids {
			s.use(i)
		}
		for _, n := range s.answer(in) {
			n.forgetUnlooked(in.looked)
			after.add(n)
		}
	}
	return after
}

// isOverdue says whether the lease should have been settled before the answer came.
func (k *keyHistory) isOverdue(s *state, in *input) bool {
	for _, i := range in.voids {
		if s.settles != i+1 {
			continue
		}
		for _, j := range in.lateness {
			if k.unknowns[j].mayRenew(s) {
				return false // that may have written the lease, which keeps it
			}
		}
		return true
	}
	return false
}

func (k *keyHistory) first() *stateSet {
	s := state{}
	if !k.fresh {
		s.why, s.sinceMax = endUnseen, math.MaxInt64/2
	}
	return &stateSet{[]state{s}}
}

func (k *keyHistory) model() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return k.first() },
		Step: func(s, in, _ interface{}) (bool, interface{}) {
			after := k.step(s.(*stateSet), in.(*input))
			return len(after.states) > 0, after
		},
		Equal: func(a, b interface{}) bool { return a.(*stateSet).equals(b.(*stateSet)) },
		DescribeOperation: func(in, _ interface{}) string {
			return in.(*input).record.String()
		},
		DescribeState: func(s interface{}) string { return s.(*stateSet).String() },
	}
}

func (set *stateSet) String() string {
	var texts []string
	for i := range set.states {
		if i == 4 {
			texts = append(texts, fmt.Sprintf("... %d more", len(set.states)-i))
			break
		}
		texts = append(texts, set.states[i].String())
	}
	return strings.Join(texts, " | ")
}

// judge searches an order of the answers of one key that the decision table allows.
func (k *keyHistory) judge(order ordering, log *logOrder, limit time.Duration) verdict {
	if len(k.unknowns) > unknownMax {
		return verdict{porcupine.Unknown, fmt.Sprintf("%d unknown operations", len(k.unknowns))}
	}
	k.prepare(order, log)
	result := porcupine.CheckOperationsTimeout(k.model(), k.ops, limit)
	switch {
	case result == porcupine.Ok:
		return verdict{result, ""}
	case k.overflow:
		return verdict{porcupine.Unknown, "too many unknown operations at one time"}
	case result == porcupine.Unknown:
		return verdict{result, fmt.Sprintf("no end within %v", limit)}
	case order == byTime:
		return verdict{result, "no order of the answers is allowed"}
	}
	return verdict{result, k.firstBad()}
}

// firstBad names the first answer in the order of the log that nothing explains.
func (k *keyHistory) firstBad() string {
	set := k.first()
	for _, in := range k.inputs {
		after := k.step(set, in)
		if len(after.states) == 0 {
			return fmt.Sprintf("line %d, client %d on node %s: %s\n      but before it: %s",
				in.line, in.Client, in.Node, in.record, set)
		}
		set = after
	}
	return "no order of the answers is allowed"
}

// draw writes the picture of a bad key: answers in the order of the search, unknown ones and faults
// as marks beside them.
func (k *keyHistory) draw(path string, faults []*record) error {
	_, info := porcupine.CheckOperationsVerbose(k.model(), k.ops, 20*time.Second)
	when := func(ns int64) int64 { // a moment of the history on the axis of the picture
		at := int64(-1)
		for _, op := range k.ops {
			if op.Input.(*input).Call <= ns {
				at = max(at, op.Call)
			}
		}
		return at
	}
	var marks []porcupine.Annotation
	for _, u := range k.unknowns {
		marks = append(marks, porcupine.Annotation{Tag: "unknown", Start: when(u.Call),
			End: when(u.Return), Description: u.record.String(), BackgroundColor: "#eed9a0"})
	}
	for _, f := range faults {
		marks = append(marks, porcupine.Annotation{Tag: "faults", Start: when(f.At),
			End: when(max(f.At, f.Until)), Description: f.Text, BackgroundColor: "#f0b0b0"})
	}
	info.AddAnnotations(marks)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return porcupine.Visualize(k.model(), info, file)
}
