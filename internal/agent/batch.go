package agent

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

// batch is an answer that has no end yet. It takes memory only between the first
// write and the send.
type batch struct {
	to    http.ResponseWriter
	flush func() error
	held  *bytes.Buffer // nil if it is empty
}

// startStream sends the headers at once, so that the caller sees that the
// stream is there.
func startStream(w http.ResponseWriter, contentType string) *batch {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	b := &batch{to: w, flush: http.NewResponseController(w).Flush}
	_ = b.flush() // the first write reports what is wrong
	return b
}

// Write adds p, and sends what was collected if that is much.
func (b *batch) Write(p []byte) (int, error) {
	b.hold()
	b.held.Write(p) // it never fails
	return len(p), b.spill()
}

// add is [batch.Write] of several texts, one after the other.
func (b *batch) add(texts ...string) error {
	b.hold()
	for _, s := range texts {
		b.held.WriteString(s) // it never fails
	}
	return b.spill()
}

func (b *batch) hold() {
	if b.held == nil {
		b.held, _ = batches.Get().(*bytes.Buffer)
	}
}

func (b *batch) spill() error {
	if b.held.Len() < batchMax {
		return nil
	}
	return b.empty()
}

// empty sends what was collected.
func (b *batch) empty() error {
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
		err = b.flush()
	}
	return err
}

// send is empty. It reports false when the caller is gone.
func (b *batch) send() bool { return b.empty() == nil }
