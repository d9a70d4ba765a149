package feed

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/dozehq/doze"
)

// The names of messages.
const (
	stateEvent    = "state"
	completeEvent = "complete"
	changeEvent   = "change"
)

// reader is one stream.
type reader struct {
	board *board
	run   *run
	out   *writer
	at    uint64      // what it has read; 0 is nothing
	may   func() bool // whether it may still read
}

// once writes all sandboxes, and ends.
func (rd *reader) once() error {
	rd.at = 0
	_ = rd.begin() // the answer has begun: who went away hears nothing
	return nil
}

// follow writes until ctx ends, or the reader may read no longer, or the reader is too
// slow, or a look fails. In each case, the reader comes again and hears why.
func (rd *reader) follow(ctx context.Context) {
	alive, rights := time.NewTicker(aliveEvery), time.NewTicker(rightsEvery)
	defer alive.Stop()
	defer rights.Stop()
	if rd.at == 0 {
		if rd.begin() != nil {
			return
		}
	} else if rd.out.comment() != nil { // so that it knows that it is let in
		return
	}
	for {
		all, changed, err := rd.board.after(rd.at, rd.run)
		if err != nil {
			return
		}
		for _, m := range all {
			if rd.out.message(changeEvent, Position{rd.board.epoch, m.seq}, m.text) != nil {
				return
			}
			rd.at = m.seq
		}
		if len(all) > 0 && rd.out.flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-alive.C:
			if rd.out.comment() != nil {
				return
			}
		case <-rights.C:
			if !rd.may() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// begin writes all sandboxes.
func (rd *reader) begin() error {
	parts, total, at, seq := rd.board.state()
	for part := range parts {
		if err := rd.out.message(stateEvent, Position{rd.board.epoch, 0}, part); err != nil {
			return err
		}
	}
	rd.at = seq
	end := data{At: doze.Time{Time: at}, Total: &total}.encode()
	if err := rd.out.message(completeEvent, Position{rd.board.epoch, seq}, end); err != nil {
		return err
	}
	return rd.out.flush()
}

// writer writes messages, each within a time.
type writer struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// The data is JSON, which has no line break.
func (o *writer) message(event string, id Position, data []byte) error {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTime)) // a writer without deadlines has none
	_, err := fmt.Fprintf(o.w, "event: %s\nid: %s\ndata: %s\n\n", event, id, data)
	return err
}

// comment tells the reader that the stream is alive.
func (o *writer) comment() error {
	_ = o.control.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := fmt.Fprint(o.w, ":\n\n"); err != nil {
		return err
	}
	return o.flush()
}

func (o *writer) flush() error { return o.control.Flush() }

// end leaves the connection to the next request.
func (o *writer) end() { _ = o.control.SetWriteDeadline(time.Time{}) }
