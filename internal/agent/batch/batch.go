// Package batch sends answers that have no end yet, with few system calls.
package batch

import (
	"bytes"
	"net/http"
	"sync"
)

// batchMax is what is collected of an answer before it is sent: a call of the
// system for each line takes longer than to make the line.
const batchMax = 256 << 10

// batches lends memory to collect in.
var batches = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Batch is an answer that has no end yet. It takes memory only between the first
// write and the send.
type Batch struct {
	to   http.ResponseWriter
	sent func() error
	held *bytes.Buffer // nil if it is empty
}

// Start sends the headers at once, so that the caller sees that the
// stream is there.
func Start(w http.ResponseWriter, contentType string) *Batch {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	b := &Batch{to: w, sent: http.NewResponseController(w).Flush}
	_ = b.sent() // the first write reports what is wrong
	return b
}

// Write adds p, and sends what was collected if that is much.
func (b *Batch) Write(p []byte) (int, error) {
	b.hold()
	b.held.Write(p) // it never fails
	return len(p), b.spill()
}

// Add is [Batch.Write] of several texts, one after the other.
func (b *Batch) Add(texts ...string) error {
	b.hold()
	for _, s := range texts {
		b.held.WriteString(s) // it never fails
	}
	return b.spill()
}

func (b *Batch) hold() {
	if b.held == nil {
		b.held, _ = batches.Get().(*bytes.Buffer)
	}
}

func (b *Batch) spill() error {
	if b.held.Len() < batchMax {
		return nil
	}
	return b.Flush()
}

// Flush sends what was collected.
func (b *Batch) Flush() error {
	if b.held == nil {
		return nil
	}
	held := b.held
	b.held = nil
	_, err := b.to.Write(held.Bytes())
	if held.Cap() <= 2*batchMax { // a larger one was for a line that is not usual
		held.Reset()
		batches.Put(held)
	}
	if err == nil {
		err = b.sent()
	}
	return err
}

// Send is empty. It reports false when the caller is gone.
func (b *Batch) Send() bool { return b.Flush() == nil }
