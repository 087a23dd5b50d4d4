package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
)

// endOfEntry is the place of a read: it is true of the end of an entry.
const endOfEntry = 4294967295

// holder is what an answer says about the lease of the key.
type holder struct {
	Owner  string `json:"owner"`
	State  string `json:"state"`
	Token  uint64 `json:"token"`
	MsLeft int64  `json:"ms_left"`
}

// record is one line of a history; README.md says what each field means.
type record struct {
	Kind string `json:"kind"`

	Client int    `json:"client"`
	Node   string `json:"node"`
	Ns     string `json:"ns"`
	Key    string `json:"key"`
	Owner  string `json:"owner"`

	Op          string  `json:"op"`
	TTL         int64   `json:"ttl_ms"`
	Destroy     bool    `json:"destroy"`
	Adopt       bool    `json:"adopt"`
	Grace       int64   `json:"grace_ms"`
	Reestablish bool    `json:"reestablish"`
	IfToken     *uint64 `json:"if_token"`
	Identity    string  `json:"identity"`
	Stale       bool    `json:"stale"`

	Call     int64   `json:"call_ns"`
	Return   int64   `json:"return_ns"`
	Outcome  string  `json:"outcome"`
	Error    string  `json:"error"`
	ByNode   bool    `json:"by_node"`
	Token    uint64  `json:"token"`
	MsLeft   int64   `json:"ms_left"`
	Before   bool    `json:"held_before"`
	Holder   *holder `json:"holder"`
	GraceMs  int64   `json:"grace_ms_left"`
	Index    uint64  `json:"index"`
	Place    uint64  `json:"place"`
	Clock    int64   `json:"clock_ms"`
	From     int64   `json:"from_ns"`
	Until    int64   `json:"until_ns"`
	At       int64   `json:"at_ns"`
	Text     string  `json:"text"`
	Fresh    bool    `json:"fresh"`
	Retained int64   `json:"retention_ms"`

	line int
}

// history is everything that one file says.
type history struct {
	fresh     bool  // the cluster was born for it: no key had an owner before
	retention int64 // ms for which tombstones are kept for certain
	answered  []*record
	unknown   []*record
	beliefs   []*record
	told      []*record
	faults    []*record
}

var operations = map[string]bool{
	"take": true, "claim": true, "renew": true, "heartbeat": true, "release": true, "owner": true,
	"renew_all": true, "release_all": true, "purge": true,
}

// notDone are the errors that promise that nothing happened.
var notDone = map[string]bool{
	"UNAVAILABLE": true, "INVALID": true, "DENIED": true, "INCOMPATIBLE": true, "INTERNAL": true,
}

// readHistory reads JSON lines. A line that breaks the format is an error, never left out.
func readHistory(in io.Reader) (*history, error) {
	h := &history{retention: 600000}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), 1<<24)
	for number := 1; lines.Scan(); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		r := &record{line: number}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if err := h.add(r); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	h.spread()
	return h, nil
}

// add sorts a line to its kind.
func (h *history) add(r *record) error {
	if r.Ns == "" {
		r.Ns = "default"
	}
	switch r.Kind {
	case "history":
		h.fresh = r.Fresh
		if r.Retained > 0 {
			h.retention = r.Retained
		}
	case "op":
		return h.addOperation(r)
	case "belief":
		if r.Until < r.From || r.Token == 0 {
			return fmt.Errorf("a belief needs a token and from_ns <= until_ns")
		}
		h.beliefs = append(h.beliefs, r)
	case "told":
		h.told = append(h.told, r)
	case "fault":
		h.faults = append(h.faults, r)
	default:
		return fmt.Errorf("unknown kind %q", r.Kind)
	}
	return nil
}

func (h *history) addOperation(r *record) error {
	switch {
	case !operations[r.Op]:
		return fmt.Errorf("unknown operation %q", r.Op)
	case (r.Error == "") == (r.Outcome == ""):
		return fmt.Errorf("an operation has an outcome or an error")
	case notDone[r.Error]:
		return nil // certainly without effect: what it did all the same stays unexplained
	case r.Error == "UNKNOWN":
		if r.Op != "owner" {
			h.unknown = append(h.unknown, r)
		}
		return nil
	case r.Error != "":
		return fmt.Errorf("unknown error %q", r.Error)
	case r.Return < r.Call:
		return fmt.Errorf("answered before it was asked")
	}
	h.answered = append(h.answered, r)
	return nil
}

// life is the time between the first call and the last answer about a key itself.
type life struct{ first, last int64 }

// spread gives each operation on all keys of an owner or a namespace (key "*") one line per key that
// was in use meanwhile; on others its effect shows nowhere.
func (h *history) spread() {
	lives := map[string]map[string]life{}
	for _, r := range append(append([]*record{}, h.answered...), h.unknown...) {
		if r.Key == "*" {
			continue
		}
		if lives[r.Ns] == nil {
			lives[r.Ns] = map[string]life{}
		}
		known, ok := lives[r.Ns][r.Key]
		if !ok {
			known = life{r.Call, r.Return}
		}
		lives[r.Ns][r.Key] = life{min(known.first, r.Call), max(known.last, r.Return)}
	}
	h.answered, h.unknown = spreadOver(h.answered, lives), spreadOver(h.unknown, lives)
}

func spreadOver(list []*record, lives map[string]map[string]life) []*record {
	var out []*record
	for _, r := range list {
		if r.Key != "*" {
			out = append(out, r)
			continue
		}
		var names []string
		for key, known := range lives[r.Ns] {
			if r.Call <= known.last && (r.Error != "" || r.Return >= known.first) {
				names = append(names, key)
			}
		}
		sort.Strings(names)
		for _, key := range names {
			copied := *r
			copied.Key = key
			out = append(out, &copied)
		}
	}
	return out
}

// isBefore says whether the position of a is before that of b in the log.
func isBefore(a, b *record) bool {
	return a.Index < b.Index || a.Index == b.Index && a.Place < b.Place
}

// grants says whether the answer gave the lease with a token of its own.
func (r *record) grants() bool {
	switch r.Outcome {
	case "REESTABLISHED":
		return true
	case "GRANTED":
		// Destroy of one's own marker keeps the token; the answer does not tell it from own -> del.
		return !(r.Op == "claim" && r.Destroy && r.Before)
	}
	return false
}

// sighting is the lease that the answer shows, whoever has it: owner and token, or false.
func (r *record) sighting() (string, uint64, bool) {
	switch r.Outcome {
	case "GRANTED", "RENEWED", "REESTABLISHED":
		if r.Token != 0 {
			return r.Owner, r.Token, true
		}
	default:
		if r.Holder != nil {
			return r.Holder.Owner, r.Holder.Token, true
		}
	}
	return "", 0, false
}

func (r *record) String() string {
	text := r.Op
	if r.Destroy {
		text += " destroy"
	}
	if r.Adopt {
		text += fmt.Sprintf(" adopt(%d)", r.Grace)
	}
	if r.Reestablish {
		text += " reestablish"
	}
	if r.IfToken != nil {
		text += fmt.Sprintf(" if %d", *r.IfToken)
	}
	text += fmt.Sprintf(" %s ttl %d", r.Owner, r.TTL)
	if r.Identity != "" {
		text += " identity " + r.Identity
	}
	text += " -> " + r.Outcome + r.Error
	if r.Before {
		text += " before"
	}
	if r.Token != 0 {
		text += fmt.Sprintf(" token %d", r.Token)
	}
	if r.Holder != nil {
		text += fmt.Sprintf(" (%s %s token %d, %d ms left)", r.Holder.Owner, r.Holder.State,
			r.Holder.Token, r.Holder.MsLeft)
	}
	if r.Outcome == "GRACE" {
		text += fmt.Sprintf(" %d ms", r.GraceMs)
	}
	if r.Outcome != "" {
		text += fmt.Sprintf(" @%d/%d clock %d", r.Index, r.Place, r.Clock)
	}
	return text
}
