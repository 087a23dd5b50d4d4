package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rounds is how many histories a test plays: CHECKER_ROUNDS, or few.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("CHECKER_ROUNDS")); err == nil {
		return n
	}
	return 300
}

func complaintsOf(r *report) string {
	var text []string
	for i, c := range r.complaints {
		if i == 3 {
			break
		}
		text = append(text, c.promise+": "+c.text)
	}
	return strings.Join(append(text, r.undecided...), "\n  ")
}

// In the order of positions every history ends in a verdict. Without them a branch of the search may
// meet more unknown operations than it can follow; that is rare, and no verdict at all.
func TestGoodHistoriesAreAccepted(t *testing.T) {
	undecided := 0
	for seed := 0; seed < rounds(); seed++ {
		m := newReference(int64(seed), none)
		lost := []int{0, 10, 25}[seed%3]
		h := m.play(600, 2+seed%7, 1+seed%4, lost)
		for _, order := range []ordering{byPosition, byTime} {
			found := judgeHistory(h, order, time.Minute)
			if order == byTime {
				undecided += len(found.undecided)
				found.undecided = nil
			}
			if len(found.complaints)+len(found.undecided) > 0 {
				t.Fatalf("seed %d, order %d, %d lost per 1,000: %s", seed, order, lost,
					complaintsOf(found))
			}
		}
	}
	t.Logf("%d histories in two orders, %d keys undecided without positions", rounds(), undecided)
	if undecided > 1+rounds()/200 {
		t.Errorf("%d keys undecided", undecided)
	}
}

// hitsNeeded is how often a flaw must have come up. Once may leave no trace: what was not settled may
// expire before anybody could know that it should have been, and an operation whose fate is unknown
// may explain what really was a flaw.
func hitsNeeded(f flaw) int {
	switch f {
	case settleForgotten:
		return 12
	case unknownAsRefusal:
		return 2
	}
	return 5
}

func TestEachFlawIsRefused(t *testing.T) {
	for f := none + 1; f < flawCount; f++ {
		f := f
		t.Run(strings.ReplaceAll(flawNames[f], " ", "_"), func(t *testing.T) {
			refused, hurt := 0, 0
			var missed []string
			byPromise := map[string]int{}
			for seed := 0; seed < 5+rounds()/15; seed++ {
				m := newReference(int64(seed), f)
				lost := 10
				if f == settleForgotten || f == lateAfterSettle {
					lost = 100
				}
				h := m.play(1500, 6, 2, lost)
				if m.hits < hitsNeeded(f) {
					continue
				}
				hurt++
				found := judgeHistory(h, byPosition, time.Minute)
				if len(found.complaints) == 0 {
					missed = append(missed, fmt.Sprintf("%d (%d hits)", seed, m.hits))
					continue
				}
				refused++
				byPromise[found.complaints[0].promise]++
			}
			t.Logf("%d of %d refused, first by %v", refused, hurt, byPromise)
			if hurt == 0 || refused < hurt {
				t.Errorf("%d of %d refused; accepted: seeds %q", refused, hurt, missed)
			}
		})
	}
}

// --- belief, told and faults: lines written by hand

func judgeLines(t *testing.T, lines ...string) *report {
	t.Helper()
	h, err := readHistory(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return judgeHistory(h, byPosition, time.Minute)
}

const (
	fresh  = `{"kind":"history","fresh":true}`
	claimA = `{"kind":"op","key":"k","owner":"a","op":"claim","ttl_ms":100,"call_ns":1000000,` +
		`"return_ns":2000000,"outcome":"GRANTED","token":5,"ms_left":100,"index":1,"clock_ms":10}`
	takeB = `{"kind":"op","key":"k","owner":"b","op":"take","ttl_ms":100,"call_ns":20000000,` +
		`"return_ns":21000000,"outcome":"GRANTED","token":6,"ms_left":100,"index":2,"clock_ms":30,` +
		`"holder":{"owner":"a","state":"own","token":5,"ms_left":80}}`
	releaseA = `{"kind":"op","key":"k","owner":"a","op":"release","call_ns":20000000,` +
		`"return_ns":21000000,"outcome":"RELEASED","index":2,"clock_ms":30}`
	claimB = `{"kind":"op","key":"k","owner":"b","op":"claim","ttl_ms":100,"call_ns":30000000,` +
		`"return_ns":31000000,"outcome":"GRANTED","token":7,"ms_left":100,"index":3,"clock_ms":40}`
	renewA = `{"kind":"op","key":"k","owner":"a","op":"renew","ttl_ms":100,"call_ns":40000000,` +
		`"return_ns":41000000,"outcome":"LOST","index":4,"clock_ms":50,` +
		`"holder":{"owner":"b","state":"own","token":6,"ms_left":80}}`
)

func belief(owner string, token, from, until int) string {
	return `{"kind":"belief","key":"k","owner":"` + owner + `","token":` + strconv.Itoa(token) +
		`,"from_ns":` + strconv.Itoa(from) + `000000,"until_ns":` + strconv.Itoa(until) + `000000}`
}

func TestBelief(t *testing.T) {
	cases := []struct {
		name  string
		good  bool
		lines []string
	}{
		{"one_after_the_other", true, []string{claimA, releaseA, claimB, belief("a", 5, 2, 20),
			belief("b", 7, 31, 90)}},
		{"both_after_a_release", false, []string{claimA, releaseA, claimB, belief("a", 5, 2, 60),
			belief("b", 7, 31, 90)}},
		{"a_claim_granted_while_a_peer_believes", false, []string{claimA, releaseA, claimB,
			belief("a", 5, 2, 60)}},
		{"the_loser_of_a_take", true, []string{claimA, takeB, belief("a", 5, 2, 40),
			belief("b", 6, 21, 90)}},
		{"the_loser_of_a_take_until_told", true, []string{claimA, takeB, renewA,
			belief("a", 5, 2, 41), belief("b", 6, 21, 90)}},
		{"the_loser_of_a_take_after_it_was_told", false, []string{claimA, takeB, renewA,
			belief("a", 5, 2, 60), belief("b", 6, 21, 90)}},
		{"told_by_an_event", false, []string{claimA, takeB, belief("a", 5, 2, 60),
			`{"kind":"told","key":"k","owner":"a","token":5,"at_ns":30000000}`}},
		{"the_taker_after_a_claim", false, []string{claimA, takeB, belief("a", 5, 2, 20),
			belief("b", 6, 21, 90), belief("c", 9, 50, 60)}},
		{"an_unknown_take_between", true, []string{claimA, belief("a", 5, 2, 60),
			`{"kind":"op","key":"k","owner":"c","op":"take","ttl_ms":100,"call_ns":3000000,` +
				`"return_ns":4000000,"error":"UNKNOWN"}`, claimB, belief("b", 7, 31, 90)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			found := judgeLines(t, append([]string{fresh}, c.lines...)...)
			if (len(found.complaints) == 0) != c.good {
				t.Errorf("good: %v, found: %s", c.good, complaintsOf(found))
			}
		})
	}
}

func TestOperationsOnAllKeysOfAnOwner(t *testing.T) {
	releaseAll := func(owner string) string {
		return `{"kind":"op","key":"*","owner":"` + owner + `","op":"release_all","call_ns":22000000,` +
			`"return_ns":23000000,"outcome":"DONE","index":2,"place":1,"clock_ms":30}`
	}
	if found := judgeLines(t, fresh, claimA, releaseAll("a"), claimB); len(found.complaints) > 0 {
		t.Errorf("refused: %s", complaintsOf(found))
	}
	if found := judgeLines(t, fresh, claimA, releaseAll("c"), claimB); len(found.complaints) == 0 {
		t.Error("a claim that nothing made room for was accepted")
	}
}

func TestMalformedLinesAreErrors(t *testing.T) {
	for _, line := range []string{`{`, `{"kind":"surprise"}`, `{"kind":"op","op":"steal"}`,
		`{"kind":"op","op":"take"}`, `{"kind":"op","op":"take","outcome":"HELD","error":"UNKNOWN"}`,
		`{"kind":"op","op":"take","error":"MAYBE"}`, `{"kind":"belief","from_ns":2,"until_ns":1}`,
		`{"kind":"op","op":"take","outcome":"HELD","call_ns":5,"return_ns":4}`} {
		if _, err := readHistory(strings.NewReader(line)); err == nil {
			t.Errorf("accepted: %s", line)
		}
	}
}

func TestAPictureOfABadHistoryIsWritten(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "bad.jsonl")
	text := strings.Join([]string{fresh, claimA, claimB,
		`{"kind":"fault","at_ns":5000000,"until_ns":9000000,"text":"kill node 1"}`}, "\n")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, err := judgeFile(path, byPosition, time.Minute, folder)
	if code != exitBad || err != nil {
		t.Fatalf("exit %d, %v", code, err)
	}
	picture, err := os.ReadFile(path + "-1.html")
	if err != nil || !strings.Contains(string(picture), "kill node 1") {
		t.Errorf("no picture with the fault: %v", err)
	}
}
