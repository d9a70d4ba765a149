package feed

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dozehq/doze"
)

// TestForgets: a board remembers so many messages, and all of the last look. A reader behind
// them is told, and begins anew.
func TestForgets(t *testing.T) {
	t.Parallel()
	b := newBoard("w")
	r := &run{}
	b.run = r
	look := func(version, many int) {
		l := b.begin()
		for i := range many {
			if err := l.add(&doze.FeedSandbox{Name: fmt.Sprint(i), Version: fmt.Sprint(version)}); err != nil {
				t.Fatal(err)
			}
		}
		b.publish(r, l)
	}
	const many = 3 * partMax
	for version := range ringMax { // each look but the first has three messages
		look(version, many)
	}
	if len(b.ring) > ringMax || b.bytes > ringBytesMax || len(b.ring) < 3 {
		t.Errorf("the ring has %d messages and %d bytes", len(b.ring), b.bytes)
	}
	sum := 0
	for _, m := range b.ring {
		sum += len(m.text)
	}
	oldest := b.ring[0].seq
	if sum != b.bytes || b.ring[len(b.ring)-1].seq != b.seq {
		t.Errorf("it counts %d bytes of %d", b.bytes, sum)
	}
	if all, _, err := b.after(oldest-1, r); err != nil || len(all) != len(b.ring) || all[0].seq != oldest {
		t.Errorf("from the oldest: %d messages, %v", len(all), err)
	}
	if _, _, err := b.after(oldest-2, r); !errors.Is(err, errForgotten) {
		t.Errorf("from before: %v", err)
	}
	if at := b.resume(Position{b.epoch, oldest - 2}); at != 0 {
		t.Errorf("it resumes at %d", at)
	}
	if at := b.resume(Position{b.epoch, oldest - 1}); at != oldest-1 {
		t.Errorf("it does not resume at the oldest: %d", at)
	}

	huge := (ringMax + 10) * partMax
	before := b.seq
	look(-1, huge)
	if all, _, err := b.after(before, r); err != nil || len(all) != ringMax+10 {
		t.Errorf("of a huge look, a reader gets %d messages, %v", len(all), err)
	}
}
