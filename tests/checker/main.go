// Checks a history of Tenure against its contract: see README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	exitGood      = 0
	exitBad       = 1
	exitUnusable  = 2
	exitUndecided = 3
	shownMax      = 10 // complaints of one kind that are printed
)

// report is everything that was found in a history.
type report struct {
	complaints []complaint
	bad        []*keyHistory
	undecided  []string
	keys       int
	operations int
	unknown    int
	beliefs    int
	largest    int
}

// judgeHistory runs all checks.
func judgeHistory(h *history, order ordering, limit time.Duration) *report {
	found := &report{operations: len(h.answered), unknown: len(h.unknown), beliefs: len(h.beliefs)}
	found.complaints = append(checkDirect(h), checkBelief(h)...)
	keys := keysOf(h)
	found.keys = len(keys)
	log := logOf(h)
	verdicts := make([]verdict, len(keys))
	var wait sync.WaitGroup
	places := make(chan bool, runtime.NumCPU())
	for i, k := range keys {
		wait.Add(1)
		places <- true
		go func(i int, k *keyHistory) {
			defer wait.Done()
			verdicts[i] = k.judge(order, log, limit)
			<-places
		}(i, k)
	}
	wait.Wait()
	for i, k := range keys {
		found.largest = max(found.largest, len(k.inputs)+len(k.unknowns))
		switch verdicts[i].result {
		case porcupine.Illegal:
			found.bad = append(found.bad, k)
			found.complaints = append(found.complaints,
				complaint{"P6", k.name + ": " + verdicts[i].reason})
		case porcupine.Unknown:
			found.undecided = append(found.undecided, k.name+": "+verdicts[i].reason)
		}
	}
	return found
}

// show prints the findings and returns the exit code.
func (r *report) show() int {
	shown := map[string]int{}
	for _, c := range r.complaints {
		if shown[c.promise]++; shown[c.promise] <= shownMax {
			fmt.Printf("  broken (%s): %s\n", c.promise, c.text)
		}
	}
	for promise, count := range shown {
		if count > shownMax {
			fmt.Printf("  ... %d more (%s)\n", count-shownMax, promise)
		}
	}
	for _, text := range r.undecided {
		fmt.Printf("  undecided: %s\n", text)
	}
	switch {
	case len(r.complaints) > 0:
		return exitBad
	case len(r.undecided) > 0:
		return exitUndecided
	}
	return exitGood
}

func judgeFile(path string, order ordering, limit time.Duration, pictures string) (int, error) {
	began := time.Now()
	file, err := os.Open(path)
	if err != nil {
		return exitUnusable, err
	}
	defer file.Close()
	h, err := readHistory(file)
	if err != nil {
		return exitUnusable, err
	}
	if len(h.answered) == 0 {
		return exitUnusable, fmt.Errorf("no operation was answered")
	}
	if order == byPosition && !hasPositions(h) {
		return exitUnusable, fmt.Errorf("an answer without a position; -order time does without")
	}
	found := judgeHistory(h, order, limit)
	code := found.show()
	for i, k := range found.bad {
		if pictures == "" || i == 3 {
			break
		}
		name := fmt.Sprintf("%s-%d.html", filepath.Base(path), i+1)
		picture := filepath.Join(pictures, name)
		if err := k.draw(picture, h.faults); err != nil {
			return exitUnusable, err
		}
		fmt.Printf("  picture of %s: %s\n", k.name, picture)
	}
	words := map[int]string{exitGood: "good", exitBad: "BAD", exitUndecided: "UNDECIDED"}
	fmt.Printf("%s: %s: %d answered and %d unknown operations on %d keys (at most %d on one), "+
		"%d beliefs, %d ms\n", path, words[code], found.operations, found.unknown, found.keys,
		found.largest, found.beliefs, time.Since(began).Milliseconds())
	return code, nil
}

func main() {
	order := flag.String("order", "position", "position: the log's; time: calls and returns only")
	limit := flag.Duration("limit", time.Minute, "longest search for one key")
	pictures := flag.String("pictures", "", "folder for pictures of bad keys")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: checker [-order position|time] [-limit 1m] "+
			"[-pictures FOLDER] HISTORY...\nexit: 0 good, 1 bad, 2 unusable, 3 undecided")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 || !strings.Contains(" position time ", " "+*order+" ") {
		flag.Usage()
		os.Exit(exitUnusable)
	}
	chosen := byPosition
	if *order == "time" {
		chosen = byTime
	}
	worst := exitGood
	for _, path := range flag.Args() {
		code, err := judgeFile(path, chosen, *limit, *pictures)
		if err != nil {
			fmt.Fprintf(os.Stderr, "checker: %s: %v\n", path, err)
		}
		if worst == exitGood || code == exitBad || code == exitUnusable && worst != exitBad {
			worst = code
		}
	}
	os.Exit(worst)
}
